"""Assigns credit: each rollout of an iteration gets its reward and its advantage over the others of its group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rpl.core.answers import exact_match
from rpl.core.records import Question, Rollout
from rpl.credit.advantages import AdvantageKind, group_advantages
from rpl.credit.rewards import score


@dataclass(frozen=True, slots=True)
class CreditedRollout:
    """A rollout with what became of it in training."""

    rollout: Rollout
    reward: float | None
    """`None` if the rollout is void."""
    terms: dict[str, float]
    """Unweighted reward terms."""
    em: float
    advantage: float
    kept: bool
    """Whether it entered the loss: it is not void, and its group's rewards differ."""


def assign_credit(
    rollouts: Sequence[Rollout],
    questions: Sequence[Question],
    weights: Mapping[str, float],
    advantage: AdvantageKind,
    everywhere: Callable[[list[float]], list[float]] = lambda rewards: rewards,
) -> list[CreditedRollout]:
    """Scores rollouts and compares them within their groups.

    Args:
        rollouts: Whole groups; void ones get no reward and take no part in any comparison.
        questions: Those that they answer.
        weights: Reward terms and their weights.
        advantage: See `group_advantages`.
        everywhere: Maps the rewards of this process to those of all processes, which `reinforce` compares with.

    Returns:
        One record a rollout: first those that are not void, in order, then the void ones.
    """
    by_id = {question.id: question for question in questions}
    valid = [rollout for rollout in rollouts if rollout.infra_error is None]
    rewards = [score(rollout, by_id[rollout.question_id], weights) for rollout in valid]
    totals = [reward.total for reward in rewards]
    found = group_advantages(totals, [r.group_id for r in valid], advantage, batch_rewards=everywhere(totals))
    credited = [
        CreditedRollout(
            rollout,
            reward.total,
            reward.terms,
            exact_match(rollout.answer, by_id[rollout.question_id].answers),
            float(value),
            bool(keep),
        )
        for rollout, reward, value, keep in zip(valid, rewards, found.values, found.keep, strict=True)
    ]
    void = [CreditedRollout(r, None, {}, 0.0, 0.0, False) for r in rollouts if r.infra_error is not None]
    return credited + void
