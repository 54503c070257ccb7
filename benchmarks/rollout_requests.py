"""What the sampling benchmarks ask for: the same rollouts on both sides."""

from __future__ import annotations

from collections.abc import Sequence

from rpl.core.records import Question
from rpl.core.seeds import derive_seed
from rpl.rollouts.requests import RolloutRequest


def make_requests(questions: Sequence[Question], number: int, count: int, group_size: int) -> list[RolloutRequest]:
    """The rollouts of turn `number`: the same on both sides, other questions every turn."""
    chosen = [questions[(number * count + i) % len(questions)] for i in range(count)]
    return [
        RolloutRequest(q, f"{number}/{q.id}", i, derive_seed(0, "bench", number, q.id, i))
        for q in chosen
        for i in range(group_size)
    ]
