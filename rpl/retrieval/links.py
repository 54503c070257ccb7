"""The title-mention graph: from a passage to the passages whose titles its text mentions.

A mention is a whole-word occurrence of a title. At each place of the text the longest title wins and the search goes
on after it; only a passage's own title leaves what is inside it to be found. Case, accents and the style of quotes and
dashes are ignored, with three guards against chance mentions: a title with a capital letter needs a mention with a
capital letter ("Euro" matches neither "neuro" nor "euro"), a title needs three letters, and a title that is one stop
word or a bare number is never linked. A title with a disambiguation in brackets, such as "Pepo (film)", is also found
by the part before it.

Not covered: redirects, abbreviations, inflected forms, and links that are in the source's markup only.
"""

from __future__ import annotations

import re
import unicodedata

from rpl.retrieval.cache import LRUCache
from rpl.retrieval.corpus import Corpus
from rpl.retrieval.stopwords import STOP_WORDS
from rpl.types import Passage

_WORD = re.compile(r"\w+")
_DISAMBIGUATION = re.compile(r"^(.*\S)\s*\([^()]*\)$")
_CHARACTERS = str.maketrans({"’": "'", "‘": "'", "`": "'", "“": '"', "”": '"', "–": "-", "—": "-", "‐": "-", "‑": "-"})
_EDGES = frozenset(" \"'.,:;!?¡¿…*")
_MIN_LETTERS = 3


class LinkGraph:
    """Finds links on demand; the titles are prepared once, at first use.

    Args:
        corpus: The passages.
        cache_size: Passages whose links are remembered.
    """

    def __init__(self, corpus: Corpus, cache_size: int = 50_000) -> None:
        self.corpus = corpus
        self._titles: _TitleTable | None = None
        self._cache: LRUCache[tuple[int, ...]] = LRUCache(cache_size)

    def links(self, passage_id: str, k: int) -> list[Passage]:
        """Returns the passages whose titles the text of a passage mentions.

        Args:
            passage_id: Where to start.
            k: How many to return at most.

        Returns:
            Passages in order of first mention, those with one title in corpus order, without the passage itself.
            Passages that share the start's own title (more pieces of the same article) come last. The score is
            1 / (rank + 1).

        Raises:
            KeyError: There is no such passage.
        """
        start = self.corpus.position(passage_id)
        targets = self._cache.get(start)
        if targets is None:
            targets = self._find(start)
            self._cache.put(start, targets)
        return [self.corpus.passage(p, 1.0 / (rank + 1), rank) for rank, p in enumerate(targets[:k])]

    def _find(self, start: int) -> tuple[int, ...]:
        if self._titles is None:
            self._titles = _TitleTable(self.corpus.titles)
        own = self._titles.same_title(start)
        found: dict[int, None] = {}
        for position in self._titles.mentions(self.corpus.texts[start], start):
            found.setdefault(position)
        others = [p for p in found if p not in own]
        siblings = [p for p in found if p in own and p != start]
        return tuple(others + siblings)


class _TitleTable:
    """Looks titles up by their first word and number of words, so that a text is scanned once."""

    def __init__(self, titles: list[str]) -> None:
        self._surfaces: dict[str, list[int]] = {}
        self._lengths: dict[str, set[int]] = {}
        self._capital: dict[str, bool] = {}
        self._keys: list[str | None] = []
        shortened: list[tuple[str, int]] = []
        for position, title in enumerate(titles):
            self._keys.append(self._add(title, position))
            match = _DISAMBIGUATION.match(title.strip())
            if match:
                shortened.append((match.group(1), position))
        # Whole titles first: "Pepo" itself comes before "Pepo (film)".
        for title, position in shortened:
            self._add(title, position)
        self._longest_first = {word: sorted(lengths, reverse=True) for word, lengths in self._lengths.items()}

    def same_title(self, position: int) -> set[int]:
        """Returns the places of all passages with the title of this one, itself included."""
        key = self._keys[position]
        if key is None:
            return {position}
        return {p for p in self._surfaces[key] if self._keys[p] == key}

    def mentions(self, text: str, start: int) -> list[int]:
        """Returns the places of the passages whose titles a text mentions, in order of mention, with repeats.

        Args:
            text: The text of the passage at `start`.
            start: Its own title does not hide shorter ones: "Borders of Mongolia" mentions Mongolia.
        """
        own = self._keys[start]
        clean = _clean(text)
        spans = [match.span() for match in _WORD.finditer(clean)]
        words = [_fold(clean[a:b]) for a, b in spans]
        found: list[int] = []
        i = 0
        while i < len(spans):
            step = 1
            for length in self._longest_first.get(words[i], ()):
                if i + length > len(spans):
                    continue
                mention = clean[spans[i][0] : spans[i + length - 1][1]]
                key = _fold(mention)
                positions = self._surfaces.get(key)
                if positions is not None and (not self._capital[key] or _has_capital(mention)):
                    found += positions
                    if key == own:
                        continue
                    step = length
                    break
            i += step
        return found

    def _add(self, title: str, position: int) -> str | None:
        clean = _clean(title)
        spans = [match.span() for match in _WORD.finditer(clean)]
        if not spans:
            return None
        surface = clean[spans[0][0] : spans[-1][1]]
        dropped = set(clean[: spans[0][0]] + clean[spans[-1][1] :])
        if dropped - (_EDGES | set(")" if "(" in surface else "")):
            # What is left of "÷ (album)" without its symbols would be another title.
            return None
        key = _fold(surface)
        letters = sum(character.isalpha() for character in key)
        caseless = letters > 0 and surface.lower() == surface.upper()
        if letters == 0 or (letters < _MIN_LETTERS and not caseless) or key in STOP_WORDS:
            return None
        positions = self._surfaces.setdefault(key, [])
        if position not in positions[-1:]:
            positions.append(position)
        # One title in lower case is enough to allow mentions in lower case.
        self._capital[key] = self._capital.get(key, True) and _has_capital(surface)
        self._lengths.setdefault(_fold(clean[slice(*spans[0])]), set()).add(len(spans))
        return key


def _clean(text: str) -> str:
    """Joins white space and unifies quotes and dashes; keeps case and accents."""
    return " ".join(unicodedata.normalize("NFC", text).translate(_CHARACTERS).split())


def _fold(text: str) -> str:
    """Removes case and accents."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def _has_capital(text: str) -> bool:
    return any(character.isupper() for character in text)
