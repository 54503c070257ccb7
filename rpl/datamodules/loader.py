"""Sized, deterministic loaders of Python objects: no worker processes, no random state.

Which item comes when is a pure function of (seed, epoch, index, number of processes). A training loader's state is one
integer, the batches that were handed out, and it is equal on all processes; resuming replays nothing and skips nothing.
Lightning prefetches nothing from an iterable that has a length, so the state never runs ahead of the trained batches.
The epoch comes from that integer too: Lightning's own epoch counter runs one ahead after a resume from a checkpoint
that was saved at an epoch's end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from rpl.core.errors import CheckpointError, ConfigError
from rpl.core.files import digest
from rpl.core.progress import say

T = TypeVar("T")


def epoch_order(num_items: int, seed: int, epoch: int) -> list[int]:
    """Returns the order of an epoch: a permutation of range(num_items) that depends on seed and epoch alone."""
    return sorted(range(num_items), key=lambda index: digest("order", str(seed), str(epoch), str(index)))


def left_out(num_items: int, world_size: int, seed: int, epoch: int) -> set[int]:
    """Returns the items of an epoch that cannot be shared out evenly, fewer than `world_size`.

    They go round: over `num_items` epochs each item is left out equally often.

    >>> [len(left_out(7, 2, 0, epoch)) for epoch in range(3)], left_out(8, 2, 0, 0)
    ([1, 1, 1], set())
    """
    each = num_items % world_size
    turns = epoch_order(num_items, seed, -1) if each else []
    return {turns[(epoch * each + number) % num_items] for number in range(each)}


class TrainLoader(Generic[T]):
    """Yields shuffled batches; all processes get equally many batches, of equal sizes.

    One iteration takes `batch_size * world_size` consecutive items of the epoch's order, and process `rank` takes every
    `world_size`-th of them. The last iteration of an epoch may be smaller; the fewer than `world_size` items that
    cannot be shared out evenly wait for another epoch; they are others each time, in turn.

    Args:
        items: What to yield, at least `world_size` of them.
        batch_size: Items an iteration and process.
        seed: Names the order.
        rank: Number of this process among those with different data.
        world_size: Number of such processes.

    Raises:
        ConfigError: An argument is out of its range, or there are fewer items than processes.
    """

    def __init__(
        self, items: Sequence[T], batch_size: int, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        _check(batch_size, rank, world_size)
        if len(items) < world_size:
            raise ConfigError(f"{len(items)} training items cannot be shared out over {world_size} processes")
        self._items = items
        self._batch_size = batch_size
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._batches = 0
        self._resumes = False
        self._identity: str | None = None

    def __len__(self) -> int:
        """Number of batches an epoch and process."""
        return math.ceil(len(self._items) // self._world_size / self._batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of batches handed out since the first epoch began, and of which data."""
        return {"batches": self._batches, "identity": self.identity}

    @property
    def identity(self) -> str:
        """A digest of everything that the order of batches depends on: items, batch size, seed, number of processes."""
        if self._identity is None:
            settings = (self._batch_size, self._seed, self._world_size)
            self._identity = digest(repr(settings), *map(repr, self._items))
        return self._identity

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration begin after the batches that were handed out; says so if they were of other data.

        Raises:
            CheckpointError: The state is not one of this loader.
        """
        batches = state.get("batches")
        if not isinstance(batches, int) or batches < 0:
            raise CheckpointError(f"the checkpoint's data state must be {{'batches': n >= 0}}, got {state!r}")
        if self._rank == 0 and state.get("identity", self.identity) != self.identity:
            say(
                "the checkpoint was made with other training data, batch size, seed or number of processes: the run "
                f"goes on {batches} batches into what is given now"
            )
        self._batches = batches
        self._resumes = True

    def __iter__(self) -> Iterator[list[T]]:
        """Yields the batches of the next epoch, or what is left of the current one after `load_state_dict`.

        An epoch that was left early (`limit_train_batches`) is not continued by the next iteration, but it is by a
        resumed run.
        """
        # A generator runs nothing before its first item: iterators that are made and dropped take nothing.
        length = len(self)
        if not self._resumes:
            self._batches = math.ceil(self._batches / length) * length
        self._resumes = False
        epoch, start = divmod(self._batches, length)
        waiting = left_out(len(self._items), self._world_size, self._seed, epoch)
        order = [item for item in epoch_order(len(self._items), self._seed, epoch) if item not in waiting]
        step = self._batch_size * self._world_size
        for index in range(start, length):
            self._batches += 1
            chunk = order[index * step : (index + 1) * step]
            yield [self._items[i] for i in chunk[self._rank :: self._world_size]]


class EvalLoader(Generic[T]):
    """Yields every item once, in order, over all processes together: no padding, so no item counts twice.

    Process `rank` takes every `world_size`-th item. All processes get equally many batches, so that they meet in the
    same collectives; where items run out a batch is shorter or empty.

    Args:
        items: What to yield.
        batch_size: Items a batch and process.
        rank: Number of this process among those with different data.
        world_size: Number of such processes.

    Raises:
        ConfigError: An argument is out of its range.
    """

    def __init__(self, items: Sequence[T], batch_size: int, *, rank: int = 0, world_size: int = 1) -> None:
        _check(batch_size, rank, world_size)
        self._shard = items[rank::world_size]
        self._batch_size = batch_size
        self._num_batches = math.ceil(math.ceil(len(items) / world_size) / batch_size)

    def __len__(self) -> int:
        """Number of batches, the same on all processes."""
        return self._num_batches

    def __iter__(self) -> Iterator[list[T]]:
        """Yields the batches of this process."""
        for index in range(self._num_batches):
            yield list(self._shard[index * self._batch_size : (index + 1) * self._batch_size])


def _check(batch_size: int, rank: int, world_size: int) -> None:
    if batch_size < 1:
        raise ConfigError(f"data.batch_size must be at least 1, got {batch_size}")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank must be in [0, world_size), got rank {rank} of {world_size}")
