"""Canary queries: does a backend find passages by their own words, and tell different queries apart?

An index that was built or loaded wrongly mostly still answers, with the wrong passages. A passage's own title and
text must bring that passage back; backends that fail this must not be trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rpl.core.errors import RetrieverError
from rpl.core.records import Passage
from rpl.retrieval.corpus.corpus import REBUILD, Corpus

CANARIES = 8
"""How many passages are tried, evenly spread over the corpus."""

DEPTH = 10
"""A passage counts as found within this many results."""

MIN_FOUND = 0.5
"""The least share of passages that must be found. A damaged index finds about none of them; a sound one nearly all,
but near-copies in a corpus may push a passage out of its own first results."""

_WORDS = 60
_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """What the canary queries found."""

    tried: int
    found: int
    same_answer: bool
    """Whether all queries, though different, had the same first result."""

    @property
    def ok(self) -> bool:
        """Whether the backend can be trusted."""
        return not self.same_answer and self.found >= MIN_FOUND * self.tried

    def __str__(self) -> str:
        text = f"{self.found} of {self.tried} passages found by their own text"
        return f"{text}; all queries have the same first result" if self.same_answer else text


def probe(search: Callable[[Sequence[str], int], list[list[Passage]]], corpus: Corpus) -> CanaryReport:
    """Asks a backend for passages by their own title and text.

    Args:
        search: `Retriever.search`.
        corpus: The passages it should know.
    """
    return probe_passages(search, canary_sample(corpus))


def canary_sample(corpus: Corpus) -> list[Passage]:
    """Returns the passages that are tried, evenly spread over a corpus."""
    step = max(1, len(corpus) // CANARIES)
    return [corpus.passage(position) for position in range(0, len(corpus), step)][:CANARIES]


def probe_passages(
    search: Callable[[Sequence[str], int], Sequence[Sequence[Passage]]], canaries: Sequence[Passage]
) -> CanaryReport:
    """Asks a backend for given passages by their own title and text.

    Args:
        search: `Retriever.search`.
        canaries: Passages it should know.
    """
    results = search([canary_query(p) for p in canaries], DEPTH)
    # Copies of a passage under other ids answer as well as the passage itself.
    found = sum(found_itself(hits, p) for p, hits in zip(canaries, results, strict=True))
    distinct = len({(p.title, p.text) for p in canaries})
    firsts = {hits[0].id if hits else None for hits in results}
    return CanaryReport(len(canaries), found, same_answer=distinct > 2 and len(firsts) == 1)


def require_sound(name: str, report: CanaryReport) -> None:
    """Stops where a backend failed its canary queries.

    Raises:
        RetrieverError: It failed.
    """
    if not report.ok:
        raise RetrieverError(
            f"the {name} index fails its self-test: {report}. It does not fit its corpus or the installed packages; "
            f"{REBUILD}"
        )


def canary_query(passage: Passage) -> str:
    """Returns a query made of a passage's title and the first words of its text."""
    return " ".join(f"{passage.title} {passage.text}".split()[:_WORDS])[:_CHARS]


def found_itself(hits: Sequence[Passage], passage: Passage) -> bool:
    """Tells whether a passage, or a copy of it under another id, is among results."""
    return any(hit.id == passage.id or (hit.title, hit.text) == (passage.title, passage.text) for hit in hits)
