"""A pool of threads that gives up a thread whose task hangs in code that cannot be interrupted.

A call into a retrieval backend may never return, and Python cannot end a thread. So the thread that waits for the
results watches the tasks: one that is overdue is settled without its thread, which ends by itself should the call ever
return, and a fresh thread takes its place.

Threads without work end soon. One that ever ran a model keeps a team of OpenMP threads for as long as it lives, and
with more of those than cores every parallel loop of the process gets slower (a quarter, in decoding on two cores).
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from rpl.core.errors import ExecutorError

T = TypeVar("T")

SHORTEST_LOOK_S = 0.005
"""Least time between two looks at running tasks."""


IDLE_S = 0.1
"""How long a thread waits for more work before it ends."""


class LeftBehind(BaseException):
    """Ends the thread of a task that was given up; raised by the task itself once its call returns."""


class Task(ABC, Generic[T]):
    """One piece of work with a result."""

    @abstractmethod
    def work(self) -> T:
        """Does it, in a thread of the crew.

        Raises:
            LeftBehind: The task was given up meanwhile.
        """

    @property
    @abstractmethod
    def look_at(self) -> float:
        """When it has to be looked at next, on the monotonic clock, in seconds; infinite before it runs."""

    @abstractmethod
    def give_up(self) -> T | None:
        """Settles it from outside if it hangs: returns its result, or `None` where it does not hang."""


class Crew:
    """A fixed number of threads.

    Args:
        size: How many tasks are worked on at once.
        between: Called in a thread when it has handed in a result, before it takes the next task.
    """

    def __init__(self, size: int, between: Callable[[], None]) -> None:
        self._size = size
        self._between = between
        self._owner = os.getpid()
        self._roster = _Roster()

    def run(self, tasks: Sequence[Task[T]], look_s: float) -> list[T]:
        """Returns the results of tasks, in order, when all are settled.

        Args:
            tasks: What to do.
            look_s: The shortest time after which a task that is started now can be overdue.

        Raises:
            ExecutorError: No thread can be started.
            BaseException: What the first of the tasks that failed raised.
        """
        batch: _Batch[T] = _Batch(tasks)
        try:
            for number in range(len(tasks)):
                self._put(_Entry(batch, number))
            wait_s = look_s
            while tasks and not batch.finished.wait(wait_s):
                wait_s = self._look(batch, look_s)
        except BaseException:  # Ctrl-C: what has not begun is not begun any more
            batch.cancelled = True
            raise
        if batch.errors:
            raise batch.errors[min(batch.errors)]
        return [batch.results[number] for number in range(len(tasks))]

    def close(self) -> None:
        """Lets the threads end after the tasks that were handed in; the crew can go on with fresh ones."""
        roster, self._roster = self._roster, _Roster()
        with roster.lock:
            for _ in range(roster.threads):
                roster.entries.put(None)

    def _put(self, entry: _Entry) -> None:
        if self._owner != os.getpid():  # threads do not survive a fork
            self._owner, self._roster = os.getpid(), _Roster()
        with self._roster.lock:
            if self._roster.threads < self._size:
                self._start()
            self._roster.entries.put(entry)

    def _start(self) -> None:
        """Starts one more thread; goes on with those that run where the system refuses, as long as there is one."""
        roster = self._roster
        try:
            threading.Thread(target=_work, args=(roster, self._between), name="rpl-sandbox", daemon=True).start()
        except RuntimeError as error:
            if not roster.threads:
                raise ExecutorError(f"the sandbox cannot start a thread: {error}") from error
        else:
            roster.threads += 1

    def _look(self, batch: _Batch[T], look_s: float) -> float:
        now = time.monotonic()
        next_look = now + look_s
        for number, task in enumerate(batch.tasks):
            look_at = next_look if number in batch.results else task.look_at
            if look_at <= now:
                result = task.give_up()
                if result is not None:
                    batch.settle(number, result)
                    with self._roster.lock:  # a fresh thread in the place of the one that is left behind
                        self._roster.threads = max(0, self._roster.threads - 1)
                        self._start()
            else:
                next_look = min(next_look, look_at)
        with self._roster.lock:
            if not self._roster.threads and not self._roster.entries.empty():
                self._start()  # none could be had when one was left behind
        return max(SHORTEST_LOOK_S, next_look - now)


class _Batch(Generic[T]):
    def __init__(self, tasks: Sequence[Task[T]]) -> None:
        self.tasks = tasks
        self.results: dict[int, T] = {}
        self.errors: dict[int, BaseException] = {}
        self.cancelled = False
        self.finished = threading.Event()
        self._lock = threading.Lock()

    def work(self, number: int) -> None:
        if self.cancelled:
            return
        try:
            result = self.tasks[number].work()
        except LeftBehind:
            raise
        except BaseException as error:  # raised again in the thread that waits
            self.errors[number] = error
            self._count()
        else:
            self.settle(number, result)

    def settle(self, number: int, result: T) -> None:
        self.results[number] = result
        self._count()

    def _count(self) -> None:
        with self._lock:
            finished = len(self.results) + len(self.errors) == len(self.tasks)
        if finished:
            self.finished.set()


class _Entry:
    __slots__ = ("batch", "number")

    def __init__(self, batch: _Batch[T], number: int) -> None:
        self.batch = batch
        self.number = number


class _Roster:
    """The threads that share one queue."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads = 0
        self.entries: SimpleQueue[_Entry | None] = SimpleQueue()


def _work(roster: _Roster, between: Callable[[], None]) -> None:
    while True:
        try:
            entry = roster.entries.get(timeout=IDLE_S)
        except Empty:
            with roster.lock:  # entries are put under this lock: none can come between the look and the end
                if roster.entries.empty():
                    roster.threads -= 1
                    return
            continue
        if entry is None:
            return
        try:
            entry.batch.work(entry.number)
        except LeftBehind:
            return
        del entry  # an executor that its owner dropped must not be kept by an idle thread
        between()
