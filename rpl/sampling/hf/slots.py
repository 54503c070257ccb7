"""Assigns transcripts to slots of the cache, and finds how much of a new one is in a slot already.

Transcripts of a group begin with the same prompt and often go on with the same program and the same observation. What
one of them has in the cache, the others take over by copying instead of running it again. A slot keeps its contents
after its transcript was dropped, until another one needs the place: late members of a group still find their prompt,
and no memory beyond the slots is held for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MIN_SHARED = 16
"""Shared tokens below which running them again is as cheap as copying, unless they are all that is missing."""


@dataclass
class Slot:
    """A place for one transcript."""

    tokens: list[int] = field(default_factory=list)
    """The transcript, which its session keeps up to date; the first `cached` tokens are in the cache."""
    cached: int = 0
    row: int | None = None
    """Whose it is; `None` if free."""
    released: int = 0
    """When it became free, as a count of releases."""


class SlotTable:
    """All slots."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self._releases = 0

    @property
    def free(self) -> list[int]:
        """Numbers of the slots without an owner."""
        return [number for number, slot in enumerate(self.slots) if slot.row is None]

    def grow(self, rows: int) -> None:
        """Adds slots until `rows` of them are free."""
        self.slots += [Slot() for _ in range(rows - len(self.free))]

    def take(self, row: int, tokens: list[int]) -> int:
        """Gives a transcript the free slot that already holds most of it, else the one that was free for longest."""
        shared = {n: common_prefix(self.slots[n], tokens) for n in self.free}
        useful = {n: length if worthwhile(length, len(tokens) - 1) else 0 for n, length in shared.items()}
        number = min(useful, key=lambda n: (-useful[n], self.slots[n].released, n))
        slot = self.slots[number]
        slot.tokens, slot.cached, slot.row = tokens, shared[number], row
        return number

    def release(self, number: int) -> None:
        """Frees a slot; its contents stay until it is taken."""
        self._releases += 1
        self.slots[number].row, self.slots[number].released = None, self._releases

    def source(self, number: int) -> tuple[int, int] | None:
        """Finds another slot that holds more of a slot's transcript than the slot itself, and enough to be worth it.

        Returns:
            That slot, the lowest of the best, and the number of first tokens to have from it.
        """
        own = self.slots[number]
        best, most = None, own.cached
        for other, slot in enumerate(self.slots):
            if other != number and slot.cached > most:
                length = common_prefix(slot, own.tokens)
                if length > most:
                    best, most = other, length
        if best is None or not worthwhile(most - own.cached, len(own.tokens) - 1 - own.cached):
            return None
        return best, most

    def swap(self, a: int, b: int) -> None:
        """Exchanges two slots; the caller does the same to the cache."""
        self.slots[a], self.slots[b] = self.slots[b], self.slots[a]


def worthwhile(gain: int, missing: int, least: int = MIN_SHARED) -> bool:
    """Whether that many tokens should be copied, of `missing` that must be in the cache before the last one is run."""
    return gain > 0 and gain >= min(least, missing)


def common_prefix(slot: Slot, tokens: Sequence[int]) -> int:
    """Counts the first tokens that a slot has in the cache; the last token never counts, as its logits are needed."""
    return shared_length(slot.tokens, tokens, min(slot.cached, len(tokens) - 1))


def shared_length(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Returns the length of the longest common prefix, at most `limit`.

    >>> shared_length([1, 2, 3, 4], [1, 2, 9, 4], 4)
    2
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
