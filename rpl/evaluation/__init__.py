"""Evaluation protocol, baselines, statistics and reports."""
