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

import threading
from pathlib import Path

import numpy as np

from rpl.core.records import Passage
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.links.titles import TitleTable

MAX_PASSAGES = 1_000
"""How many passages of one title can be linked: the first in corpus order. It bounds the work of a call."""

LINKS_VERSION = 1
"""Goes up when the files that `build_links` writes change."""


class LinkGraph:
    """Finds links on demand, in time that grows with the text of the passage and not with the corpus.

    Args:
        corpus: The passages.
        titles: Its titles; `None` prepares them in memory, at first use.
    """

    def __init__(self, corpus: Corpus, titles: TitleTable | None = None) -> None:
        self.corpus = corpus
        self._titles = titles
        self._lock = threading.Lock()

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
        targets = self._find(self.corpus.position(passage_id), k)
        return [self.corpus.passage(p, 1.0 / (rank + 1), rank) for rank, p in enumerate(targets)]

    def _find(self, start: int, k: int) -> list[int]:
        titles = self._prepared()
        own = titles.number(self.corpus.titles[start])
        family = titles.passages(own)[0] if own is not None else np.array([start], np.uint32)
        others: dict[int, None] = {}
        siblings: dict[int, None] = {}
        for number in titles.mentions(self.corpus.texts[start], own):
            for row in titles.passages(number):
                first = row[:MAX_PASSAGES]
                places = np.searchsorted(family, first)
                related = family[np.minimum(places, len(family) - 1)] == first
                others.update(dict.fromkeys(first[~related].tolist()))
                siblings.update(dict.fromkeys(first[related].tolist()))
            if len(others) >= k:
                break
        siblings.pop(start, None)
        return [*others, *siblings][:k]

    def _prepared(self) -> TitleTable:
        with self._lock:
            if self._titles is None:
                self._titles = TitleTable.build(self.corpus.titles)
            return self._titles


def build_links(corpus: Corpus, folder: Path) -> None:
    """Writes the titles of a corpus, as `load_links` needs them, into a folder that is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    TitleTable.build(corpus.titles, folder)


def load_links(corpus: Corpus, folder: Path) -> LinkGraph:
    """Maps what `build_links` wrote for this corpus.

    Raises:
        DataError: The files cannot be read or do not fit together.
    """
    return LinkGraph(corpus, TitleTable.load(folder))
