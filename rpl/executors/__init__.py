"""Runs programs against retrieval: the Executor ABC, the sandbox, its worker pool and its primitives."""
