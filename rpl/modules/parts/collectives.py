"""Sums and gathers numbers and records over all processes of a run; does nothing where there is only one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a run, as one of them sees them. Every method is collective: all ranks must call it."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where tensors must be for the backend of the process group."""

    def sums(self, values: dict[str, float]) -> dict[str, float]:
        """Adds up numbers over all ranks; every rank must bring the same names."""
        if self.world_size == 1:
            return values
        packed = torch.tensor([values[name] for name in sorted(values)], dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(packed)
        return dict(zip(sorted(values), packed.tolist(), strict=True))

    def largest(self, value: float) -> float:
        """The largest of a number over all ranks."""
        if self.world_size == 1:
            return value
        packed = torch.tensor(value, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(packed, torch.distributed.ReduceOp.MAX)
        return float(packed)

    def joined(self, values: list[T]) -> list[T]:
        """Concatenates the lists of all ranks, in rank order."""
        if self.world_size == 1:
            return values
        parts: list[list[T]] = [[] for _ in range(self.world_size)]
        torch.distributed.all_gather_object(parts, values)
        return [value for part in parts for value in part]

    def joined_on_first(self, values: list[T]) -> list[T]:
        """As `joined` on rank 0, which alone holds the lists of all ranks; the others get an empty list."""
        if self.world_size == 1:
            return values
        parts: list[list[T]] | None = [[] for _ in range(self.world_size)] if self.rank == 0 else None
        torch.distributed.gather_object(values, parts)
        return [value for part in parts or () for value in part]

    def barrier(self) -> None:
        """Waits for all ranks."""
        self.largest(0.0)
