"""Counts the time spent in a run folder over all sessions, and limits each phase to its share of the budget."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rpl.core.files import write_json
from rpl.core.progress import say
from rpl.schedule.budget import LEAST, PILOT, phase_share

BEAT_S = 5.0
"""Seconds between two notes of the time; a killed process loses at most so much."""


class Clock:
    """Counts seconds on top of what earlier processes spent in the same folder; a context manager.

    A thread notes the time in the file every few seconds, so that a process that is killed has its time counted.
    """

    def __init__(self, path: Path) -> None:
        """Reads what was spent.

        Args:
            path: The file.
        """
        self._path = path
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self._before = float(stored.get("spent_s", 0.0))
        self._begun: dict[str, float] = dict(stored.get("begun", {}))
        self._start = time.monotonic()
        self._end = threading.Event()
        self._write = threading.Lock()
        self._thread = threading.Thread(target=self._beat, name="rpl-clock", daemon=True)

    def __enter__(self) -> Clock:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self.note()

    @property
    def spent_s(self) -> float:
        """Seconds that were spent in the folder so far."""
        return self._before + time.monotonic() - self._start

    def begin(self, phase: str) -> float:
        """Returns what had been spent when a phase was first begun; the first call sets it."""
        begun = self._begun.setdefault(phase, self.spent_s)
        self.note()
        return begun

    def note(self) -> None:
        """Writes the time down."""
        with self._write:
            write_json(self._path, {"spent_s": round(self.spent_s, 3), "begun": self._begun})

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            self.note()


class Limit:
    """How long one phase may take, so that the whole schedule keeps its budget."""

    def __init__(self, clock: Clock, phase: str, budget_minutes: float | None, estimates: Sequence[float]) -> None:
        """Deals out what is left when the phase is first begun.

        Args:
            clock: Of the run folder.
            phase: Name of the phase.
            budget_minutes: Of the whole schedule; `None` sets no limit.
            estimates: Estimated seconds of this phase and of those after it.
        """
        self._clock = clock
        self.budget_s: float | None = None
        """Seconds that the phase may take; `None` for any number."""
        begun = clock.begin(phase)
        if budget_minutes is not None:
            self.budget_s = phase_share(60 * budget_minutes - begun, estimates)
        self._begun = begun

    @property
    def left_s(self) -> float:
        """Seconds left for the phase; below zero when it is late, infinite without a budget."""
        return float("inf") if self.budget_s is None else self._begun + self.budget_s - self._clock.spent_s

    def reached(self) -> bool:
        """Whether the phase has had its time."""
        return self.left_s <= 0

    @property
    def trainer(self) -> dict[str, Any]:
        """What keeps a training phase to its time, as Trainer arguments; Lightning counts resumed time in."""
        return {} if self.budget_s is None else {"max_time": {"seconds": max(1, round(self.budget_s))}}


def affordable(path: Path, planned: int, limit: Limit, pilot: Callable[[int], Any]) -> int:
    """Returns how many questions an evaluation has time for; all systems are to answer the same ones.

    A few questions are answered by all systems and timed. The answer is kept in a file: a resumed evaluation asks as
    many questions as before.

    Args:
        path: The file.
        planned: Most questions.
        limit: Of the phase.
        pilot: Lets all systems answer that many questions.
    """
    if path.exists():
        return int(json.loads(path.read_text(encoding="utf-8"))["questions"])
    if planned <= PILOT:
        return planned  # a pilot would cost as much as the evaluation
    asked = PILOT
    before = limit.left_s
    pilot(asked)
    took = before - limit.left_s
    count = min(planned, max(LEAST["eval"], int(limit.left_s * asked / took)))
    if count < planned:
        say(f"{asked} questions took {took:.0f} s with all systems: {count} of {planned} are asked, to keep the budget")
    write_json(path, {"questions": count, "planned": planned, "pilot": asked, "pilot_s": round(took, 1)})
    return count
