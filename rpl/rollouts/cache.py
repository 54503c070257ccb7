"""A key-value cache whose rows may have holes, for batches of transcripts that grow unevenly.

All rows share their columns; which columns of a row hold its tokens is the caller's knowledge. Buffers are allocated
once a turn and written in place; a forward pass reads and writes the part that the `Window` names, as views.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass
class Window:
    """The part of the cache that the next forward pass works on: rows `[top, bottom)`, columns `[left, end)`.

    The keys and values of the pass are written to the last columns before `end`.
    """

    top: int = 0
    bottom: int = 0
    left: int = 0
    end: int = 0


class RowLayer(CacheLayerMixin):
    """One layer's keys and values, `(rows, key_heads, columns, dim)`, contiguous."""

    is_sliding = False

    def __init__(self, window: Window, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.window = window
        self.stored_dtype = dtype
        self.shape = (0, 0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocates the buffers on first use, when the number of heads and their size are known."""
        rows, columns = self.shape

        def zeros(states: Tensor) -> Tensor:
            # Zeros, not empty memory: a hole that holds NaN would spoil the products that mask it out.
            shape = (rows, states.shape[1], columns, states.shape[3])
            return torch.zeros(shape, dtype=self.stored_dtype or states.dtype, device=states.device)

        self.keys, self.values = zeros(key_states), zeros(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes a pass's keys and values into the window and returns all that it covers."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        w = self.window
        keys, values = (buffer[w.top : w.bottom] for buffer in self.buffers())
        keys[:, :, w.end - key_states.shape[2] : w.end] = key_states
        values[:, :, w.end - value_states.shape[2] : w.end] = value_states
        return keys[:, :, w.left : w.end], values[:, :, w.left : w.end]

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Returns keys and values as they are stored."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns width and offset of the window."""
        return self.window.end - self.window.left, 0

    def get_seq_length(self) -> int:
        """Returns the number of columns before the window's end."""
        return self.window.end

    def get_max_length(self) -> int:
        """Returns -1: the buffers are replaced as needed."""
        return -1


class RowCache(Cache):
    """The cache of all layers.

    Args:
        layers: Number of decoder layers.
        dtype: Type that keys and values are kept in; `None` keeps the type they come in.
    """

    def __init__(self, layers: int, dtype: torch.dtype | None) -> None:
        self.window = Window()
        self.rows = [RowLayer(self.window, dtype) for _ in range(layers)]
        super().__init__(layers=list(self.rows))

    def allocate(self, rows: int, columns: int) -> None:
        """Forgets everything; the next pass finds empty buffers of this size."""
        for layer in self.rows:
            layer.shape = (rows, columns)
            layer.keys = layer.values = None
            layer.is_initialized = False

    def rebuild(self, sources: Tensor, columns: Tensor) -> None:
        """Replaces the buffers by a choice of their rows and columns.

        Args:
            sources: `(rows,)`: the old row that each new row continues.
            columns: `(rows, columns)`: the old column that each new column takes its content from. For a column that
                is a hole or still to be written, any valid column will do.
        """
        index: Tensor | None = None
        for layer in self.rows:
            keys, values = layer.buffers()
            _, heads, width, _ = keys.shape
            if index is None:
                # One flat index of (row, head, column) for all layers: copies whole head vectors.
                head = torch.arange(heads, device=sources.device)
                index = ((sources[:, None] * heads + head) * width)[:, :, None] + columns[:, None, :]
                shape = index.shape
                index = index.reshape(-1)
            layer.keys = keys.view(-1, keys.shape[-1]).index_select(0, index).view(*shape, -1)
            layer.values = values.view(-1, values.shape[-1]).index_select(0, index).view(*shape, -1)

    def swap(self, first: Tensor, second: Tensor, end: int) -> None:
        """Exchanges rows pairwise, up to column `end`."""
        both, crossed = torch.cat([first, second]), torch.cat([second, first])
        for layer in self.rows:
            for buffer in layer.buffers():
                view = buffer[:, :, :end]
                view[both] = view[crossed]
