"""Runs programs against retrieval: the Executor ABC, the RestrictedPython sandbox, its worker pool, its primitives."""
