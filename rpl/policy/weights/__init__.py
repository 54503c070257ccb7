"""The weights of a policy: adapters, shards, checkpoints, and all of them as one ordinary model file."""
