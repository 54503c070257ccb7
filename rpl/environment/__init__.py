"""A library with an executor on it, and the one policy on what its faults do to a run."""
