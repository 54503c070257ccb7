"""Mutation operators: each takes a program and donors and yields trees that differ from it by one edit."""
