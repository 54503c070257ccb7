"""Sampling with a transformers model in this process, exact for the weights being trained."""
