"""Learning-rate schedules as pure functions of the update number."""

from __future__ import annotations

import math
from typing import Literal

from rpl.core.errors import ConfigError

Schedule = Literal["constant", "linear", "cosine"]


def lr_factor(step: int, schedule: Schedule, warmup_steps: int, total_steps: int | None) -> float:
    """The factor on the base learning rate for update number `step` (from 0).

    Args:
        step: Updates that were made before.
        schedule: `constant`, or falling to 0 at `total_steps` along a line or half a cosine.
        warmup_steps: Updates over which the factor climbs linearly to 1; the first one already moves.
        total_steps: Where a falling schedule ends; `constant` does not need it.

    Raises:
        ConfigError: A falling schedule has no end.

    >>> [round(lr_factor(s, "linear", 2, 6), 2) for s in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    if total_steps is None:
        raise ConfigError(f"lr_schedule {schedule!r} needs an end: set trainer.max_steps (updates of the whole run)")
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return 1.0 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
