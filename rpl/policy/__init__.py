"""The model that writes programs, what it reads and writes, and the folder that carries it."""
