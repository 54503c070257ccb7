"""What runs inside a worker process: the compiled program, its values, its guards and its primitives."""
