"""The rule that cuts a schedule to a budget of time, and each phase's share of the time that is left.

The rule has one number, the *scale* between 0 and 1. Every amount is a fraction of what the schedule asks for, linear
between these marks; `LEAST` bounds it from below where the schedule asks for as much:

    scale                            1      0.75   0.5    0.25   0
    evaluation questions             1      0.4    0.3    0.2    0.07
    dense search                     on     on     off    off    off
    RL iterations                    1      1      0      0      0
    harvested questions              1      1      0.67   0.33   0.1
    SFT steps                        1      1      0.6    0.23   0.08

So evaluation questions go first: the answer gets less certain, not worse. RL and dense search go next (below a scale of
0.6 dense search is off): they add least for their time. Harvest and SFT go last, because they make a policy out of a
model. The largest scale whose estimate fits is taken. No amount falls when the scale rises and no estimate rises when
the machine is faster, so more time or a faster machine never gives less of anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["rl", "harvest", "sft", "eval"]

SCALES = (0.0, 0.25, 0.5, 0.75, 1.0)
FRACTIONS: dict[Kind, tuple[float, ...]] = {
    "eval": (0.07, 0.2, 0.3, 0.4, 1.0),
    "rl": (0.0, 0.0, 0.0, 1.0, 1.0),
    "harvest": (0.1, 0.33, 0.67, 1.0, 1.0),
    "sft": (0.08, 0.23, 0.6, 1.0, 1.0),
}
DENSE_FROM = 0.6
LEAST: dict[Kind, int] = {"eval": 20, "rl": 0, "harvest": 40, "sft": 8}
"""Below these amounts a phase shows nothing; a schedule that asks for less gets what it asks for."""
PILOT = 24
"""Questions that all systems answer before an evaluation with a budget, to see how long they take."""
STEPS = 100
"""Scales that are tried between 0 and 1."""


@dataclass(frozen=True)
class Amounts:
    """How much a schedule does."""

    phases: tuple[int, ...]
    """Of each phase: RL iterations, SFT steps, harvested questions, evaluation questions."""
    dense: bool
    """Whether dense search is offered."""
    scale: float = 1.0


def scaled(kinds: Sequence[Kind], full: Sequence[int], dense: bool, scale: float) -> Amounts:
    """Returns the amounts at a scale.

    Args:
        kinds: Of the phases.
        full: What each phase does at scale 1.
        dense: Whether dense search is offered at scale 1.
        scale: In [0, 1].
    """
    phases = tuple(_amount(kind, amount, scale) for kind, amount in zip(kinds, full, strict=True))
    return Amounts(phases, dense and scale >= DENSE_FROM, scale)


def _amount(kind: Kind, full: int, scale: float) -> int:
    fraction = float(np.interp(scale, SCALES, FRACTIONS[kind]))
    least = LEAST[kind] or (1 if fraction > 0 else 0)
    return min(full, max(least, round(full * fraction)))


def fit_budget(
    kinds: Sequence[Kind], full: Sequence[int], dense: bool, seconds: Callable[[Amounts], float], budget_s: float
) -> Amounts | None:
    """Returns the largest amounts whose estimate fits, or `None` where the smallest do not.

    Args:
        kinds: As for `scaled`.
        full: As for `scaled`.
        dense: As for `scaled`.
        seconds: Estimates amounts.
        budget_s: Seconds that there are.
    """
    for step in range(STEPS, -1, -1):
        amounts = scaled(kinds, full, dense, step / STEPS)
        if seconds(amounts) <= budget_s:
            return amounts
    return None


def phase_share(left_s: float, estimates: Sequence[float]) -> float:
    """Returns the seconds that the first of the phases that are left may take.

    What is left is dealt out by estimate, so that an estimate that was wrong throughout shortens all phases alike.

    Args:
        left_s: Seconds left of the budget; a negative number counts as none.
        estimates: Estimated seconds of the phases that are left, in order.
    """
    total = sum(estimates)
    return max(0.0, left_s) * estimates[0] / total if total else 0.0
