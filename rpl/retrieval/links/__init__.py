"""The graph of title mentions: which passages a passage's text leads to."""
