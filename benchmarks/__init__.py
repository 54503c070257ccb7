"""Benchmarks: each script prints a ratio that was measured in one run, with peak memory and one JSON line."""
