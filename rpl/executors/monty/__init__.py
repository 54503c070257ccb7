"""The second interpreter of the program language: Monty, in a process of its own."""
