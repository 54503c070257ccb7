"""RPL (Retrieval Program Learning): a trainer that teaches a language model to write its own retrieval programs."""

__version__ = "0.1.0"
