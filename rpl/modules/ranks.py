"""Ends all processes of a run within seconds when one fails; rank 0 writes the cause to standard error.

A process that waits in a collective for one that is gone would wait until the collective's time limit, half an hour by
default. So every process has a thread that looks for failures that others report. Processes that agree on a failure
(as when retrieval breaks down) raise by themselves and are left to it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from rpl.core import signals
from rpl.core.progress import say
from rpl.core.signals import Stopped

POLL_S = 0.5
"""Seconds between two looks at the others."""
GRACE_S = 4.0
"""Seconds that a process has to end by itself once another one has failed."""
_KEY = "rpl/failure"
_STOP = "rpl/stop"


class RankWatch(Callback):
    """Tells all others of the exception or signal that ends this process, and ends this process when they tell it.

    Modules bring it along when there are several processes; it needs no entry in YAML.
    """

    def __init__(self) -> None:
        self._store: Any = None
        self._rank = 0
        self._processes: list[Any] = []
        self._over = threading.Event()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Begins to look for failures."""
        if self._store is not None or not torch.distributed.is_initialized():
            return
        self._connect(trainer)
        threading.Thread(target=self._watch, name="rpl-rank-watch", daemon=True).start()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Reports why this process ends; on rank 0, says which other one failed before, if one did."""
        if self._store is None and torch.distributed.is_initialized():
            self._connect(trainer)  # it failed before `setup`
        self._over.set()
        if self._store is None:
            return
        if isinstance(exception, Stopped):
            self._pass_on_stop()
            time.sleep(2 * POLL_S if self._rank == 0 else 0)  # with this process goes the store, which they must read
            return
        self._pass_on_stop()
        if signals.requested() is not None:
            return  # a connection that breaks because another process has ended already
        own = f"rank {self._rank} failed: {describe(exception)}"
        try:
            first = self._store.compare_set(_KEY, "", own).decode()
        except RuntimeError:
            return  # the store went with rank 0, so there is nobody left to tell
        if self._rank != 0:
            return
        if first == own and isinstance(exception, RuntimeError):
            first = self._killed() or own  # a broken connection is how the death of another process looks from here
        if first != own:
            say(first)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Stops looking."""
        self._over.set()

    def _connect(self, trainer: pl.Trainer) -> None:
        self._rank = trainer.global_rank
        self._processes = list(getattr(trainer.strategy.launcher, "procs", []))  # on rank 0, if it started the others
        # A connection of its own: the shared one is locked while the main thread waits for something on it.
        store: Any = torch.distributed.distributed_c10d._get_default_store()
        self._store = store.clone()
        environment: Any = getattr(trainer.strategy, "cluster_environment", None)
        if self._rank != 0 and environment is not None and not environment.creates_processes_externally:
            signals.leave_status_to_rank_0()

    def _pass_on_stop(self) -> None:
        """Tells the others of a signal that asked this process to end, or this process of theirs."""
        try:
            if (number := signals.requested()) is not None:
                self._store.set(_STOP, str(int(number)))
            elif self._store.check([_STOP]):
                signals.request(int(self._store.get(_STOP)))
        except RuntimeError:
            return  # the store went with rank 0, which `_failure` finds out

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            self._pass_on_stop()
            failure, stopping = self._failure(), signals.requested() is not None
            if failure is None:
                continue
            if self._rank == 0 and not stopping:
                say(failure)
            if self._over.wait(GRACE_S):
                return  # this process is ending by itself
            for process in self._processes:
                process.send_signal(signal.SIGKILL)  # nothing less ends a process in a collective
            if stopping:
                signals.end()
            sys.stderr.flush()
            os._exit(1)

    def _failure(self) -> str | None:
        try:
            if self._store.check([_KEY]):
                return str(self._store.get(_KEY).decode())
        except RuntimeError:
            return "rank 0 is gone"  # with it goes the store
        return self._ended(lambda code: code != 0 or signals.requested() is not None)

    def _killed(self) -> str | None:
        """Names a process that a signal ended, which may show a moment later than its connections break."""
        for _ in range(10):
            if (failure := self._ended(lambda code: code < 0)) is not None:
                return failure
            time.sleep(0.1)
        return None

    def _ended(self, wrong: Callable[[int], bool]) -> str | None:
        for rank, process in enumerate(self._processes, start=1):
            code = process.poll()
            if code is not None and wrong(code):
                cause = f"signal {-code} (9 is often the system, out of memory)" if code < 0 else f"status {code}"
                return f"rank {rank} failed: its process ended with {cause}"
        return None


def describe(exception: BaseException) -> str:
    """Returns an exception as one line: its kind, its text, and where it was raised."""
    frames = traceback.extract_tb(exception.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(exception).split())
    return f"{type(exception).__name__}: {text}{place}"
