"""Token ids in, token ids out: the sampler interface and its two engines."""
