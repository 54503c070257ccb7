"""How long programs take, apart from how long it takes to write them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rpl.executors.base import Executor, TokenCounter
from rpl.types import Trace


class TimedExecutor(Executor):
    """Passes programs on to an executor and adds up the seconds they take."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.seconds = 0.0

    def connect(self, count_tokens: TokenCounter) -> None:
        """See `Executor.connect`."""
        self.inner.connect(count_tokens)

    def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[Trace]:
        """See `Executor.run_many`."""
        start = time.perf_counter()
        try:
            return self.inner.run_many(jobs)
        finally:
            self.seconds += time.perf_counter() - start

    def close(self) -> None:
        """See `Executor.close`."""
        self.inner.close()
