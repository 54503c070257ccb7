"""The interface of program execution: limits and the `Executor` ABC."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from rpl.core.errors import ConfigError
from rpl.core.records import Trace
from rpl.retrieval.library.counting import CallCounts

TokenCounter = Callable[[str], int]
"""Counts the tokens of a text with the policy's tokenizer."""


@dataclass(frozen=True)
class ExecutionLimits:
    """Budgets of one program. Each has an error kind of its own (`budget_fuel`, `timeout`, …)."""

    calls: int = 32
    """Primitive calls."""
    passages: int = 400
    """Passages fetched, summed over all calls."""
    fuel: int = 20_000
    """Loop steps, calls, and what operations on large values cost; see `rpl.executors.runtime.fuel`."""
    wall_s: float = 10.0
    """Wall-clock seconds, retrieval included; the worker is killed past it."""
    call_s: float = 5.0
    """Wall-clock seconds of one primitive call; past it (or past half of `wall_s`) retrieval is at fault."""
    memory_mb: int = 256
    """Address space a worker may add to what the bare interpreter needs, in MiB."""
    printed_tokens: int = 512
    """Tokens of one observation. Whole items, in print order; one that can never fit is named, the rest counted."""
    source_chars: int = 4_000
    """Length of the program text."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if not getattr(self, f.name) > 0:
                raise ConfigError(f"limits.{f.name} must be positive, got {getattr(self, f.name)!r}")


class Executor(ABC):
    """Runs programs and returns traces; a failed program is a trace with an error, never an exception."""

    @abstractmethod
    def connect(self, count_tokens: TokenCounter) -> None:
        """Sets the tokenizer that the print budget is counted with."""

    @abstractmethod
    def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[Trace]:
        """Runs programs, several at a time.

        Args:
            jobs: Pairs of program source and question text.

        Returns:
            One trace a job, in order. Where retrieval or the sandbox failed (after retries), `Trace.infra_error` is
            set.
        """

    def run(self, source: str, question: str) -> Trace:
        """Runs one program; see `run_many`."""
        return self.run_many([(source, question)])[0]

    def verify(self) -> str | None:
        """Returns why nothing that programs printed since the last call can be trusted, or `None` where it can.

        Whoever is about to train on rollouts, or to score them, asks this first.

        Raises:
            RetrieverError: Retrieval does not work, and did not come back.
        """
        return None

    @property
    def counts(self) -> CallCounts:
        """Calls of retrieval so far, and what became of them; zeros where nothing counts them."""
        return CallCounts()

    @abstractmethod
    def close(self) -> None:
        """Stops all workers; the executor can be used again afterwards (workers restart on demand)."""
