"""Rollouts that infrastructure failed are made once more before they are given up as void."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rpl.core.records import Rollout
from rpl.rollouts.loop import RolloutRequest, run_rollouts

RETRIES = 1
"""How often a void rollout is made again. The executor has then waited for retrieval to work again already."""


def run_with_retries(requests: Sequence[RolloutRequest], **arguments: Any) -> list[Rollout]:
    """Makes rollouts, and those again that came out void: their requests name the same noise.

    Args:
        requests: What to roll out.
        **arguments: Those of `run_rollouts`.

    Returns:
        One rollout a request, in order; void ones are among them where the retries failed as well.
    """
    rollouts = run_rollouts(requests, **arguments)
    for _ in range(RETRIES):
        void = [number for number, rollout in enumerate(rollouts) if rollout.infra_error is not None]
        if not void:
            break
        fresh = run_rollouts([requests[number] for number in void], **arguments)
        for number, rollout in zip(void, fresh, strict=True):
            rollouts[number] = rollout
    return rollouts
