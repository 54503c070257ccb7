"""From sequences of tokens to their log-probabilities: micro-batches, packing, the forward pass."""
