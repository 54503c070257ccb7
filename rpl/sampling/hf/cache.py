"""A key-value cache of slots: each holds one transcript from its first column on, and is written at its own place.

Nothing moves when transcripts of different lengths are decoded together, pause or resume: token `i` of a transcript is
in column `i` of its slot. Buffers are allocated once and grow in large steps; a forward pass writes where `Access`
says and reads the slots it names, as views where they lie next to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_COLUMN_STEP = 64
"""Columns are allocated in multiples of this."""


class Access:
    """What the next forward pass does with the buffers.

    Args:
        slots: `(batch,)` slots that the rows of the pass belong to. `None` stands for the first `batch` slots, which
            are then read without copying.
        columns: `(batch, length)` where the keys and values of the pass are written.
        width: Number of columns that are read, from the first on.
    """

    def __init__(self, slots: Tensor | None, columns: Tensor, width: int) -> None:
        self.slots, self.columns, self.width = slots, columns, width
        self._flat: dict[tuple[int, int], Tensor] = {}

    def flat(self, heads: int, capacity: int) -> Tensor:
        """Returns the places of all written vectors in a buffer seen as `(slots * heads * capacity, dim)`."""
        if (heads, capacity) not in self._flat:
            device = self.columns.device
            slots = torch.arange(len(self.columns), device=device) if self.slots is None else self.slots
            vectors = slots[:, None] * heads + torch.arange(heads, device=device)
            places = vectors[:, :, None] * capacity + self.columns[:, None, :]
            self._flat[heads, capacity] = places.reshape(-1)
        return self._flat[heads, capacity]

    def read(self, buffer: Tensor) -> Tensor:
        """Returns `(batch, heads, width, dim)` of a buffer."""
        seen = buffer[:, :, : self.width]
        return seen[: len(self.columns)] if self.slots is None else seen.index_select(0, self.slots)


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values, `(slots, key_heads, columns, dim)`, contiguous."""

    is_sliding = False

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocates the buffers on first use, when the number of heads and their size are known."""
        self.keys, self.values = self._zeros(key_states), self._zeros(value_states)
        self.is_initialized = True

    def _zeros(self, states: Tensor) -> Tensor:
        # Zeros, not empty memory: a column that holds NaN would spoil the products that mask it out.
        shape = (self.owner.slots, states.shape[1], self.owner.columns, states.shape[3])
        return torch.zeros(shape, dtype=self.owner.dtype or states.dtype, device=states.device)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes a pass's keys and values and returns those that the pass attends to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        access = self.owner.access
        assert access is not None
        seen = []
        for buffer, states in zip(self.buffers(), (key_states, value_states), strict=True):
            places = access.flat(states.shape[1], self.owner.columns)
            vectors = states.to(buffer.dtype).reshape(-1, states.shape[3])
            buffer.view(-1, states.shape[3]).index_copy_(0, places, vectors)
            seen.append(access.read(buffer))
        return seen[0], seen[1]

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Returns keys and values as they are stored."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def resize(self) -> None:
        """Moves the contents to buffers of the owner's present size."""
        if self.is_initialized:
            grown = []
            for buffer in self.buffers():
                new = self._zeros(buffer)
                new[: buffer.shape[0], :, : buffer.shape[2]] = buffer
                grown.append(new)
            self.keys, self.values = grown

    def free(self) -> None:
        """Lets the buffers go."""
        self.keys = self.values = None
        self.is_initialized = False

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns width and offset of what is read."""
        return self._width(), 0

    def get_seq_length(self) -> int:
        """Returns the number of columns that are read."""
        return self._width()

    def get_max_length(self) -> int:
        """Returns -1: the buffers grow as needed."""
        return -1

    def _width(self) -> int:
        return self.owner.access.width if self.owner.access is not None else 0


class SlotCache(Cache):
    """The cache of all layers.

    Args:
        layers: Number of decoder layers.
        dtype: Type that keys and values are kept in; `None` keeps the type they come in.
    """

    def __init__(self, layers: int, dtype: torch.dtype | None) -> None:
        self.dtype = dtype
        self.slots = 0
        self.columns = 0
        self.access: Access | None = None
        """Set before each forward pass."""
        self.parts = [SlotLayer(self) for _ in range(layers)]
        super().__init__(layers=list(self.parts))

    def reserve(self, slots: int, columns: int) -> None:
        """Grows the buffers, if they are smaller, to that many slots and at least that many columns."""
        if slots <= self.slots and columns <= self.columns:
            return
        self.slots = max(slots, self.slots)
        if columns > self.columns:
            self.columns = -(-max(columns, self.columns * 5 // 4) // _COLUMN_STEP) * _COLUMN_STEP
        for layer in self.parts:
            layer.resize()

    def copy(self, source: int, targets: Sequence[int], start: int, end: int) -> None:
        """Copies columns `[start, end)` of a slot to others."""
        for layer in self.parts:
            for buffer in layer.buffers():
                buffer[list(targets), :, start:end] = buffer[source, :, start:end]

    def swap(self, first: Sequence[int], second: Sequence[int], end: int) -> None:
        """Exchanges slots pairwise, up to column `end`."""
        both, crossed = [*first, *second], [*second, *first]
        for layer in self.parts:
            for buffer in layer.buffers():
                seen = buffer[:, :, :end]
                seen[both] = seen[crossed]

    def free(self) -> None:
        """Lets all buffers go."""
        self.slots = self.columns = 0
        self.access = None
        for layer in self.parts:
            layer.free()
