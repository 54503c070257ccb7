"""The tokenisation of keyword search, shared by all its backends.

It follows Lucene's English analyser: words with inner apostrophes, possessive endings cut, lower case, stop words out,
stemmed; single ideographs are words. Beyond Lucene it removes accents, so that "Córdoba" and "Cordoba" meet.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable

from rpl.core.errors import ConfigError, MissingDependencyError
from rpl.retrieval.keyword.stopwords import STOP_WORDS

TOKENIZER_VERSION = 1
"""Goes up when the tokens of some text change; an index made with another version is stale."""

# Hiragana and ideographs are written without spaces; as in Lucene each one is a word of its own.
_TOKEN = re.compile(
    r"[\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]|[^\W\u3040-\u309f\u3400-\u9fff]+(?:'[^\W\u3040-\u309f\u3400-\u9fff]+)*"
)
_MAX_KNOWN_WORDS = 1_000_000


class Tokenizer:
    """Turns a text into the terms of keyword search. Safe to call from several threads.

    Args:
        stemmer: Name of a Snowball stemmer (`english`, `porter`, `german`, …) or `none`.
        stop_words: Whether to leave out the 33 English stop words.

    Raises:
        ConfigError: There is no such stemmer.
        MissingDependencyError: PyStemmer is not installed.

    >>> Tokenizer()("The currencies of France's neighbours")
    ['currenc', 'franc', 'neighbour']
    """

    def __init__(self, stemmer: str = "english", stop_words: bool = True) -> None:
        self.stemmer = stemmer
        self.stop_words = STOP_WORDS if stop_words else frozenset()
        self._stem = _stemmer(stemmer)
        self._lock = threading.Lock()
        self._terms: dict[str, str] = {}

    def __call__(self, text: str) -> list[str]:
        """Returns the terms of a text, in order, with repeats."""
        terms = []
        known = self._terms
        for word in _TOKEN.findall(_fold(text)):
            if word.endswith("'s"):
                word = word[:-2]
            if word in self.stop_words:
                continue
            term = known.get(word)
            if term is None:
                # Stemmer objects are not thread-safe, and most words have been seen before.
                with self._lock:
                    term = self._stem(word)
                    if len(known) < _MAX_KNOWN_WORDS:
                        known[word] = term
            terms.append(term)
        return terms


def _fold(text: str) -> str:
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.replace("’", "'").lower())
    # Back to composed form, so that scripts in which marks are letters keep their syllables.
    latin = "".join(c for c in decomposed if not "\u0300" <= c <= "\u036f")
    return unicodedata.normalize("NFC", latin)


def _stemmer(name: str) -> Callable[[str], str]:
    if name == "none":
        return lambda word: word
    try:
        import Stemmer
    except ImportError as error:
        raise MissingDependencyError("keyword search needs PyStemmer: pip install PyStemmer") from error
    if name not in Stemmer.algorithms():
        allowed = ", ".join(sorted(Stemmer.algorithms()))
        raise ConfigError(f"library.stemmer must be none or one of {allowed}; got {name!r}")
    return Stemmer.Stemmer(name).stemWord
