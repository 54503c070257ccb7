"""Counts how many questions have all their gold passages in a library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from rpl.core.records import Question


class KnowsIds(Protocol):
    """A `Corpus` or a `Library`."""

    def missing(self, ids: Iterable[str]) -> frozenset[str] | None:
        """Returns those ids that no passage has; `None` where a server cannot tell."""


@dataclass(frozen=True, slots=True)
class GoldCoverage:
    """Gold ids of questions against the passages of a library."""

    questions: int
    """How many were looked at."""
    without_gold: int
    """Those that name no gold passage: evidence cannot be measured on them."""
    missing: dict[str, tuple[str, ...]]
    """By the id of a question, its gold ids that no passage has, in its own order; questions without any are left
    out."""
    known: bool = True
    """Whether the library could say which ids exist; if not, `missing` is empty and means nothing."""

    @property
    def with_gold(self) -> int:
        """Questions that name at least one gold passage."""
        return self.questions - self.without_gold

    @property
    def answerable(self) -> int:
        """Questions with gold, all of which the library has."""
        return self.with_gold - len(self.missing)

    @property
    def share(self) -> float | None:
        """Answerable questions over those with gold, in [0, 1]; `None` without gold, or if the server does not say."""
        return self.answerable / self.with_gold if self.known and self.with_gold else None

    def answers(self, question: Question) -> bool:
        """Tells whether nothing is known to be missing of a question's gold."""
        return question.id not in self.missing

    def __str__(self) -> str:
        if not self.with_gold:
            return f"none of {self.questions} questions names a gold passage"
        if not self.known:
            return f"{self.with_gold} questions name gold passages; the server does not say whether it has them"
        ids = sum(map(len, self.missing.values()))
        lost = f" ({ids} gold {'id is' if ids == 1 else 'ids are'} not in the corpus)" if ids else ""
        return f"{self.answerable} of {self.with_gold} questions with gold can be answered from this corpus{lost}"


def gold_coverage(questions: Iterable[Question], library: KnowsIds) -> GoldCoverage:
    """Compares the gold ids of questions with the passages of a library, in one pass over the ids.

    Args:
        questions: With ids that are unique among them.
        library: A `Library` or a `Corpus`.

    Raises:
        RetrieverError: A server that should know did not answer.
    """
    rows = list(questions)
    absent = library.missing(dict.fromkeys(id_ for row in rows for id_ in row.gold_docs))
    lost = {row.id: tuple(id_ for id_ in row.gold_docs if id_ in absent) for row in rows} if absent else {}
    return GoldCoverage(
        questions=len(rows),
        without_gold=sum(not row.gold_docs for row in rows),
        missing={id_: ids for id_, ids in lost.items() if ids},
        known=absent is not None,
    )
