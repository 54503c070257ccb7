"""Passages and question files: read, checked, stored and mapped."""
