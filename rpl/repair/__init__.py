"""Finds verified repairs of failed programs, and measures them against a resample control."""
