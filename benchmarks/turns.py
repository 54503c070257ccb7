"""The measured side's end of a benchmark: waits for its turn, reports how long it took, and at the end its memory.

Standard library only, because a peer's own environment imports it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1


class Turns:
    """Talks to `benchmarks.sides.Side` over standard input and output, one JSON object a line.

    Whatever else the process writes to standard output goes to standard error, so that a chatty library cannot break
    the conversation.
    """

    def __init__(self) -> None:
        self._cpu = 0.0
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        if sys.platform == "linux":  # a side in the middle of its turn must not outlive a benchmark that was killed
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def ready(self, **facts: Any) -> None:
        """Says that everything is loaded, with facts such as versions."""
        self._say({"ready": True, **facts})

    def wait(self) -> None:
        """Returns when it is this side's turn; ends the process if the benchmark is gone."""
        if not sys.stdin.readline():
            raise SystemExit("the benchmark ended before this side had all its turns")
        self._cpu = time.process_time()

    def done(self, seconds: float, **facts: Any) -> None:
        """Reports one turn: its wall seconds, and beside them the seconds of all threads since `wait` returned."""
        self._say({"seconds": seconds, "cpu_seconds": time.process_time() - self._cpu, **facts})

    def finish(self, device: str = "cpu", **facts: Any) -> None:
        """Reports peak memory: resident set of the whole process on a CPU, allocated by torch on a GPU."""
        self._say({"peak_mib": peak_mib(device), **facts})

    def _say(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()


def peak_mib(device: str = "cpu") -> float:
    """Returns the peak of memory so far in MiB; nothing is subtracted."""
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel reports no VmHWM")
