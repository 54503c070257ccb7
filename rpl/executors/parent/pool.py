"""The workers of an executor: each runs one program at a time, and is replaced when it was killed or worn out."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rpl.core.errors import ConfigError, ExecutorError
from rpl.core.progress import say
from rpl.executors.isolation.layers import LAYERS, missing
from rpl.executors.parent.process import MAIN_MODULE, Worker

_told: set[str] = set()
"""What was said about missing layers in this process."""


class WorkerPool:
    """Workers that start on demand, are kept for the next program, and are replaced when they were killed.

    Args:
        start: The `start` message of every worker.
        size: How many idle workers are kept; the borrowers decide how many run at once.
        recycle_after: After how many programs a worker is replaced, which bounds what its process may accumulate.
        require_layers: Layers without which no worker is lent; see `layers.LAYERS`.
        main: The main module of the worker processes.
    """

    def __init__(
        self,
        start: Mapping[str, Any],
        size: int,
        recycle_after: int,
        require_layers: Sequence[str] = (),
        main: str = MAIN_MODULE,
    ) -> None:
        self._start = start
        self._main = main
        self._recycle_after = recycle_after
        self._require_layers = tuple(require_layers)
        self._size = size
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._lost = 0
        self._closings = 0

    @contextmanager
    def lend(self) -> Iterator[Worker]:
        """Lends a living worker; a dead, used-up or killed one is replaced.

        Raises:
            ExecutorError: No worker can be started.
            ConfigError: A layer that is required does not hold it.
        """
        closings = self._closings
        worker = self._take()
        try:
            yield worker
        except BaseException:
            worker.kill()
            raise
        finally:
            worker.programs += 1
            self._give_back(worker, closings)

    def refill(self) -> None:
        """Starts workers in the place of those that were lost, so that no later program waits for one."""
        while self._lost:
            closings = self._closings
            try:
                self._give_back(self._new(), closings)
            except (ExecutorError, ConfigError):
                return  # said to whoever wants a worker next

    def layers(self) -> dict[str, str | None]:
        """Returns which layers hold the workers and why the others do not; starts a worker if none is idle."""
        with self.lend() as worker:
            return dict(worker.layers)

    def _take(self) -> Worker:
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return self._new()
            if worker.alive:
                return worker
            worker.kill()

    def _new(self) -> Worker:
        with self._lock:
            self._lost -= self._lost > 0
        worker = Worker(self._start, self._main)
        absent = missing(worker.layers, self._require_layers)
        if absent:
            worker.kill()
            raise ConfigError(f"environment.require_layers is not met on this machine ({absent})")
        _tell(missing(worker.layers, tuple(LAYERS)))
        return worker

    def _give_back(self, worker: Worker, closings: int) -> None:
        with self._lock:
            open_still = self._closings == closings
            usable = not worker.killed and worker.programs < self._recycle_after
            if open_still and usable and len(self._idle) < self._size:
                self._idle.append(worker)
                return
            self._lost += open_still and not usable
        worker.kill()

    def close(self) -> None:
        """Ends all idle workers, and the others when they are given back."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._lost = 0
            self._closings += 1
        for worker in idle:
            worker.kill()


def _tell(absent: str) -> None:
    if absent and absent not in _told:
        _told.add(absent)
        say(f"sandbox: these layers do not hold on this machine: {absent}")
