"""Corpora, indexes and vectors that others have published: fetched, checked, and made into index folders."""
