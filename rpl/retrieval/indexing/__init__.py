"""Index folders: what is in them, how they are built part by part, opened and checked."""
