"""What a run will cost: memory, time and disk, said before anything is loaded."""
