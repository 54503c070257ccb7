"""Evidence metrics: which gold passages reached the context, by passage id. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class EvidenceScores(NamedTuple):
    """Set overlap of printed and gold passages, each in [0, 1]."""

    precision: float
    recall: float
    f1: float
    all_gold: float
    """1.0 when no gold passage is missing, else 0.0."""


def evidence_scores(printed: Iterable[str], gold: Iterable[str]) -> EvidenceScores | None:
    """Compares the passages that reached the context with the ones that are needed to answer.

    Args:
        printed: Ids of printed passages; repeats count once. None printed scores 0 everywhere.
        gold: Ids of gold passages.

    Returns:
        The scores, or `None` when no gold is known: then there is nothing to measure, which is not a score of 0.

    >>> evidence_scores(["a", "b", "x", "y"], ["a", "b"])
    EvidenceScores(precision=0.5, recall=1.0, f1=0.6666666666666666, all_gold=1.0)
    >>> evidence_scores(["a"], []) is None
    True
    """
    shown, needed = set(printed), set(gold)
    if not needed:
        return None
    hits = len(shown & needed)
    precision = hits / len(shown) if shown else 0.0
    f1 = 2 * hits / (len(shown) + len(needed))
    return EvidenceScores(precision, hits / len(needed), f1, float(hits == len(needed)))


NO_GOLD = EvidenceScores(0.0, 0.0, 0.0, 0.0)
"""What stands in where something must be counted although no gold is known, such as a reward."""
