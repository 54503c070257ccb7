"""The measuring end of a benchmark: sides in processes of their own that take turns, and what came out of them."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

from rpl.core.progress import say

ROOT = Path(__file__).parents[1]


class SideError(Exception):
    """A side ended early; the message has the end of what it wrote."""


class Side:
    """One process that is measured; see `benchmarks.turns` for its end of the conversation.

    Args:
        name: What it is called in results.
        command: Arguments of the process; it runs in the repository's root.
        threads: Threads of its matrix products; `None` leaves the choice to torch.
    """

    def __init__(self, name: str, command: Sequence[str | Path], threads: int | None = None) -> None:
        self.name = name
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        if threads is not None:
            environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `close`
        try:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                cwd=ROOT,
                env=environment,
            )
        except OSError as error:
            self._log.close()
            raise SideError(f"{name} cannot be started: {error}") from error
        self.facts: dict[str, Any] = {}

    def ready(self) -> Side:
        """Waits until the side has loaded everything."""
        self.facts = self._receive()
        return self

    def turn(self) -> dict[str, Any]:
        """Lets the side work once and returns what it reports."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SideError(self._last_words()) from None
        return self._receive()

    def finish(self) -> dict[str, Any]:
        """Returns the side's closing report and ends it."""
        report = self._receive()
        self.close()
        return report

    def close(self) -> None:
        """Ends the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._process.poll() is None and exc is not None:
            self._process.kill()
        if not self._log.closed:
            self.close()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SideError(self._last_words())
        message: dict[str, Any] = json.loads(line)
        return message

    def _last_words(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        tail = "".join(self._log.readlines()[-15:]).rstrip()
        return f"{self.name} ended with status {status}:\n{tail}"


@dataclass
class Measured:
    """What one side reported."""

    turns: list[dict[str, Any]] = field(default_factory=list)
    """Its timed turns, warm-up left out."""
    warmup: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    peak_mib: float = 0.0

    @property
    def seconds(self) -> list[float]:
        """Seconds of each timed turn."""
        return [turn["seconds"] for turn in self.turns]

    def rate(self, amount: float) -> float:
        """Median of amount per second."""
        return amount / median(self.seconds)

    def summary(self) -> dict[str, Any]:
        """What goes into the JSON line."""
        return {
            "seconds": [round(s, 3) for s in self.seconds],
            "median_s": round(median(self.seconds), 3),
            "median_cpu_s": round(median(turn.get("cpu_seconds", 0.0) for turn in self.turns), 3),
            "spread": round((max(self.seconds) - min(self.seconds)) / median(self.seconds), 3),
            "peak_mib": round(self.peak_mib),
            "facts": self.facts,
        }


def take_turns(sides: Mapping[str, Side], warmup: int, repeats: int) -> dict[str, Measured]:
    """Runs sides alternately: A, B, A, B, …, so that a slow spell of the machine hits all of them.

    Args:
        sides: Started sides by name; all are waited for first, so that none loads while another works.
        warmup: Turns that are not counted.
        repeats: Turns that are.
    """
    results = {name: Measured() for name in sides}
    for name, side in sides.items():
        results[name].facts = {k: v for k, v in side.ready().facts.items() if k != "ready"}
    for number in range(warmup + repeats):
        for name, side in sides.items():
            report = side.turn()
            (results[name].warmup if number < warmup else results[name].turns).append(report)
            kind = "warm-up" if number < warmup else f"{number - warmup + 1}/{repeats}"
            say(f"{name}: {report['seconds']:.2f} s ({kind})")
    for name, side in sides.items():
        closing = side.finish()
        results[name].peak_mib = closing.pop("peak_mib")
        results[name].facts |= closing
    return results
