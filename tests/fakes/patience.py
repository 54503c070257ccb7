"""How long tests are willing to wait: for events, with deadlines far away that grow on a slow or busy machine.

No test judges by absolute time. Where a test shows that something does not hang, the hang that it would see is longer
than any patience; where it waits for something to happen, it waits for the event itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_STEPS = 200_000
_NOMINAL_S = 0.012
"""Wall seconds of `_STEPS` loop steps on an idle core of the machine that the tests were written on."""


def slowness() -> float:
    """How many times as long as nominal a fixed piece of Python takes here and now; at least 1."""
    started = time.perf_counter()
    for _ in range(_STEPS):
        pass
    return max(1.0, (time.perf_counter() - started) / _NOMINAL_S)


def patience(seconds: float) -> float:
    """Seconds to wait here for what takes at most `seconds` on a fast, idle machine."""
    return seconds * slowness()


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Waits until a condition holds.

    Args:
        condition: Asked about every hundredth of a second.
        what: What is waited for, for the message.
        seconds: Patience on a fast, idle machine.

    Raises:
        AssertionError: It did not come about.
    """
    deadline = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)
