"""Rendering, sampling and the multi-turn loop that joins policy and executor."""
