"""The English stop words of Lucene's default analyser."""

_LINES = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""

STOP_WORDS = frozenset(_LINES.split())
"""33 words that keyword search leaves out of passages and queries."""
