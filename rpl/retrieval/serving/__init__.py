"""Retrieval over HTTP: a server around a library, and the library that asks one."""
