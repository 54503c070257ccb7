"""The repair engine: finds a nearby program that prints the gold evidence, by edits that are verified by execution."""
