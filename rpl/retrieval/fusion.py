"""List operations that need no index: reciprocal-rank fusion and removal of repeats.

Pure and free of third-party imports, because the sandbox worker runs them beside the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rpl.core.errors import PrimitiveError
from rpl.core.records import Passage

RRF_K0 = 60
"""The constant of reciprocal-rank fusion, as in the paper."""


def reciprocal_rank_fusion(lists: Sequence[Sequence[Passage]], k: int | None = None, k0: int = RRF_K0) -> list[Passage]:
    """Merges ranked lists: a passage scores the sum of 1 / (k0 + place) over the lists it stands in, places from 1.

    The place is the position in the list as given, so a sliced or filtered list counts from its own start. Where a
    list repeats an id only the first one counts. Equal scores keep the order of first appearance, list by list.
    Source: Cormack, Clarke and Büttcher, SIGIR 2009, "Reciprocal rank fusion outperforms Condorcet and individual
    rank learning methods".

    Args:
        lists: Ranked lists, best first; they may overlap, differ in length and be empty.
        k: How many passages to return at most, at least 1; `None` returns all.
        k0: Dampens the lead of the first places; at least 0.

    Returns:
        Passages with the fused `score` and with `rank` from 0.

    Raises:
        PrimitiveError: An argument is not a list of passages, or `k` is below 1.

    >>> a, b = Passage("a", "A", ""), Passage("b", "B", "")
    >>> [(p.id, round(p.score, 5)) for p in reciprocal_rank_fusion([[a, b], [b]])]
    [('b', 0.03252), ('a', 0.01639)]
    """
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise PrimitiveError(f"fuse: k must be a whole number of at least 1 or None, got {k!r}")
    scores: dict[str, float] = {}
    first: dict[str, Passage] = {}
    for number, passages in enumerate(lists, start=1):
        for place, passage in enumerate(unique(passages, caller=f"fuse: list {number}"), start=1):
            scores[passage.id] = scores.get(passage.id, 0.0) + 1.0 / (k0 + place)
            first.setdefault(passage.id, passage)
    order = sorted(first, key=lambda i: -scores[i])[:k]
    return [replace(first[i], score=scores[i], rank=rank) for rank, i in enumerate(order)]


def unique(passages: Iterable[Passage], caller: str = "unique") -> list[Passage]:
    """Keeps the first passage of each id, in order and unchanged.

    Args:
        passages: Any iterable of passages.
        caller: What the error message starts with.

    Raises:
        PrimitiveError: The argument is not a list of passages.
    """
    if isinstance(passages, str | bytes | Passage | dict) or not isinstance(passages, Iterable):
        raise PrimitiveError(f"{caller} must be a list of passages, got {type(passages).__name__}")
    kept: dict[str, Passage] = {}
    for item in passages:
        if not isinstance(item, Passage):
            raise PrimitiveError(f"{caller} must hold passages only, got {type(item).__name__}")
        kept.setdefault(item.id, item)
    return list(kept.values())


COMPUTED: Mapping[str, Callable[..., list[Passage]]] = {"fuse": reciprocal_rank_fusion, "unique": unique}
"""Primitives that the sandbox worker computes by itself -> the function, called with the arguments by name."""
