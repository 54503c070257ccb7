"""Greedy answers to questions, and their scores over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from rpl.agents.baselines import evaluation_requests
from rpl.core.records import Question, Rollout
from rpl.environment.faults import VoidRate
from rpl.modules.parts.rollout_engine import Rollouts
from rpl.modules.parts.rollout_metrics import RolloutMetrics
from rpl.rollouts.requests import RolloutConfig, RolloutRequest

RollOut = Callable[[Sequence[RolloutRequest], RolloutConfig, VoidRate], Rollouts]
"""Makes rollouts: a `RolloutEngine` with its policy."""


class Evaluator(nn.Module):
    """Answers and scores questions; a submodule, so that the metrics are where the process group needs them.

    Args:
        rollout: Budgets; the temperature is set to 0.
        max_turns: Most completions in one rollout; `None` takes those of `rollout`.
        max_new_tokens: Most tokens in one completion; `None` takes those of `rollout`.
        max_void_rate: Tolerated share of questions that infrastructure failed for good.
        seed: Stands in the rollouts; greedy sampling does not use it.
    """

    def __init__(
        self, rollout: RolloutConfig, max_turns: int | None, max_new_tokens: int | None, max_void_rate: float, seed: int
    ) -> None:
        super().__init__()
        self.rollout = replace(
            rollout,
            temperature=0.0,
            max_turns=max_turns or rollout.max_turns,
            max_new_tokens=max_new_tokens or rollout.max_new_tokens,
        )
        self.metrics = RolloutMetrics()
        self.guard = VoidRate(max_void_rate)
        self.seed = seed

    def answer(self, questions: Sequence[Question], roll_out: RollOut) -> list[Rollout]:
        """Answers questions greedily; one rollout a question, in order. Collective, like `RolloutEngine.run`."""
        return roll_out(evaluation_requests(questions, self.seed), self.rollout, self.guard).rollouts

    def score(self, questions: Sequence[Question], roll_out: RollOut) -> None:
        """Answers questions, which may be none, and adds them to the scores. Collective."""
        self.metrics.update(self.answer(questions, roll_out), questions)

    def scores(self) -> dict[str, float]:
        """Returns the scores of all questions since the last call, over all ranks, and forgets them. Collective."""
        scores = self.metrics.compute()
        self.metrics.reset()
        return scores
