"""Reranking of a given list of passages."""
