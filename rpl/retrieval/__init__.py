"""Corpora, indexes and search backends behind one Library."""
