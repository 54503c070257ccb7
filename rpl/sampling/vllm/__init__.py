"""Sampling with vLLM: an engine in the training process, or servers."""
