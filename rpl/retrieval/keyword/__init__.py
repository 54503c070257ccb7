"""Keyword search: BM25 in its engines, and the tokenisation they share."""
