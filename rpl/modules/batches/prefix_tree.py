"""Finds the common beginnings of sorted sequences: a radix tree without short edges, and its size without the tree.

An edge is a run of tokens that the same sequences have in common. A short one is not worth a place of its own: its
tokens stay with each of the edges that follow it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rpl.sampling.hf.slots import shared_length

MIN_SHARED = 8
"""Tokens that must be common for a segment of their own; shorter ones cost more in attention than they save."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens from `start` to `end` that the sequences from `first` to `last` have in common; ends are exclusive."""

    start: int
    end: int
    first: int
    last: int


def segments(rows: Sequence[tuple[int, ...]]) -> list[Segment]:
    """Cuts sorted sequences into segments, parents before children.

    >>> segments([(1,) * 9, (1,) * 9 + (2,)])
    [Segment(start=0, end=9, first=0, last=2), Segment(start=9, end=10, first=1, last=2)]
    """
    common = [0, *(shared_length(a, b, min(len(a), len(b))) for a, b in itertools.pairwise(rows))]
    found: list[Segment] = []
    stack = [(0, len(rows), 0)] if rows else []
    while stack:
        first, last, start = stack.pop()
        if last - first == 1:
            if len(rows[first]) > start:
                found.append(Segment(start, len(rows[first]), first, last))
            continue
        shared = min(common[first + 1 : last])
        if shared - start >= MIN_SHARED:
            found.append(Segment(start, shared, first, last))
            start = shared
        cuts = [first, *(i for i in range(first + 1, last) if common[i] == shared), last]
        stack += [(a, b, start) for a, b in itertools.pairwise(cuts)]
    return found


@dataclass(slots=True)
class _Place:
    """Where sequences that have `depth` tokens in common part, or where one of them ends.

    Whether its edge is long enough for a segment depends on where the segment before it ends, and that changes when a
    later sequence branches off above. So sizes are kept for every end that may come.
    """

    depth: int
    start: int
    """Where the segments that follow begin: at `depth`, or up to `MIN_SHARED - 1` before it if the edge is short."""
    before: int
    """Tokens of the segments up to `start` and of all that branched off on the way."""
    behind: list[int]
    """Tokens of what branched off here, if the segments that follow begin at `depth`, `depth - 1`, …"""

    def size(self, start: int) -> int:
        """Returns the tokens of its edge and of what branched off here, if the segment before it ends at `start`."""
        length = self.depth - start
        return length + self.behind[0] if length >= MIN_SHARED else self.behind[length]

    def close(self, child: _Place) -> None:
        """Counts what branched off here and will not be entered again."""
        self.behind = [size + child.size(self.depth - i) for i, size in enumerate(self.behind)]

    @property
    def total(self) -> int:
        """Tokens of all segments so far but those that the latest sequence has for itself."""
        return self.before + self.behind[self.depth - self.start]


class PackedSize:
    """Counts the tokens of the segments of sorted sequences as they come, without making the segments.

    The sum over `segments` of all so far, at a cost that does not depend on how many there are: only the places on the
    way to the latest sequence can still change.
    """

    def __init__(self) -> None:
        self._path = [_Place(0, 0, 0, [0] * MIN_SHARED)]
        self._latest: tuple[int, ...] | None = None

    def add(self, row: tuple[int, ...]) -> int:
        """Takes the next sequence, not less than the one before it, and returns the tokens of all.

        >>> size = PackedSize()
        >>> [size.add(row) for row in [(1,) * 9, (1,) * 9 + (2,), (2,)]]
        [9, 10, 11]
        """
        if self._latest is not None:
            self._part(shared_length(self._latest, row, min(len(self._latest), len(row))))
        self._latest = row
        place = self._path[-1]
        # The end of a sequence is a place without branches: what is too short for a segment is counted as it is.
        self._path.append(_Place(len(row), place.start, 0, list(range(MIN_SHARED))))
        return place.total + len(row) - place.start

    def _part(self, depth: int) -> None:
        """Closes what is below `depth`, and makes that a place if it is none yet."""
        child = self._path.pop()
        while self._path[-1].depth > depth:
            self._path[-1].close(child)
            child = self._path.pop()
        if (above := self._path[-1]).depth < depth:
            start = depth if depth - above.start >= MIN_SHARED else above.start
            self._path.append(_Place(depth, start, above.total + start - above.start, [0] * MIN_SHARED))
        self._path[-1].close(child)
