"""Named reward terms of a rollout, and their weighted sum. Pure and deterministic: equal outcomes, equal rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rpl.core.answers import exact_match, token_f1
from rpl.core.errors import ConfigError
from rpl.core.evidence import NO_GOLD, EvidenceScores, evidence_scores
from rpl.core.records import Question, Rollout

DECIMALS = 6
"""Rewards are rounded to this many decimals, so that float noise never makes two equal outcomes differ."""


def _em(rollout: Rollout, question: Question) -> float:
    """1 if the answer equals an accepted one after normalisation."""
    return exact_match(rollout.answer, question.answers)


def _f1(rollout: Rollout, question: Question) -> float:
    """Best token F1 of the answer against the accepted ones, in [0, 1]."""
    return token_f1(rollout.answer, question.answers)


def _format(rollout: Rollout, question: Question) -> float:
    """1 if the rollout ended in a valid answer."""
    return float(rollout.answer is not None and rollout.invalid is None)


def _invalid(rollout: Rollout, question: Question) -> float:
    """1 if the rollout ended without a valid answer; give it a negative weight."""
    return 1.0 - _format(rollout, question)


def _evidence(rollout: Rollout, question: Question) -> EvidenceScores:
    """How printed and gold passages overlap; 0 throughout where no gold is known."""
    return evidence_scores(rollout.printed_ids, question.gold_docs) or NO_GOLD


def _coverage(rollout: Rollout, question: Question) -> float:
    """Share of the gold passages that reached the context."""
    return _evidence(rollout, question).recall


def _precision(rollout: Rollout, question: Question) -> float:
    """Share of the passages in the context that are gold; a rollout that printed none has 0."""
    return _evidence(rollout, question).precision


def _evidence_f1(rollout: Rollout, question: Question) -> float:
    """Harmonic mean of coverage and precision: what is needed, and no more."""
    return _evidence(rollout, question).f1


def _all_gold(rollout: Rollout, question: Question) -> float:
    """1 if every gold passage reached the context."""
    return _evidence(rollout, question).all_gold


def _program_error(rollout: Rollout, question: Question) -> float:
    """Share of the programs that failed; 0 where none ran; give it a negative weight."""
    traces = rollout.traces
    return sum(trace.error is not None for trace in traces) / len(traces) if traces else 0.0


def _printed_tokens(rollout: Rollout, question: Question) -> float:
    """Observation tokens over all turns, in hundreds; give it a negative weight."""
    return rollout.printed_tokens / 100


def _calls(rollout: Rollout, question: Question) -> float:
    """Primitive calls over all turns; give it a negative weight."""
    return float(rollout.num_calls)


def _turns(rollout: Rollout, question: Question) -> float:
    """Turns; give it a negative weight."""
    return float(len(rollout.turns))


REWARD_TERMS: dict[str, Callable[[Rollout, Question], float]] = {
    "em": _em,
    "f1": _f1,
    "format": _format,
    "coverage": _coverage,
    "precision": _precision,
    "evidence_f1": _evidence_f1,
    "all_gold": _all_gold,
    "invalid": _invalid,
    "program_error": _program_error,
    "printed_tokens": _printed_tokens,
    "calls": _calls,
    "turns": _turns,
}
"""The terms that may stand under `model.reward` in YAML."""


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of one rollout and the terms it is made of."""

    total: float
    """Weighted sum of the terms."""
    terms: dict[str, float]
    """Unweighted value of each term that has a weight."""


def check_reward(weights: Mapping[str, float]) -> None:
    """Checks the mapping of reward terms to weights.

    Args:
        weights: Term name to weight.

    Raises:
        ConfigError: It is empty, a name is unknown or a weight is not a finite number.
    """
    if not weights:
        raise ConfigError(f"reward must name at least one of {', '.join(REWARD_TERMS)}")
    for name, weight in weights.items():
        if name not in REWARD_TERMS:
            raise ConfigError(f"reward.{name} is no reward term; allowed: {', '.join(REWARD_TERMS)}")
        if not abs(weight) < float("inf"):
            raise ConfigError(f"reward.{name} must be a finite number, got {weight!r}")


def score(rollout: Rollout, question: Question, weights: Mapping[str, float]) -> Reward:
    """Scores one rollout.

    Args:
        rollout: A rollout that is not void.
        question: The question it answers, with answers and gold ids.
        weights: Term name to weight; see `REWARD_TERMS`.

    Raises:
        ValueError: The rollout is void (an infrastructure error), or belongs to another question.
    """
    if rollout.infra_error is not None:
        raise ValueError(f"a void rollout has no reward ({rollout.infra_error})")
    if rollout.question_id != question.id:
        raise ValueError(f"rollout of question {rollout.question_id!r} scored against {question.id!r}")
    terms = {name: round(REWARD_TERMS[name](rollout, question), DECIMALS) for name in weights}
    total = round(sum(weight * terms[name] for name, weight in weights.items()), DECIMALS)
    return Reward(total + 0.0, terms)  # `+ 0.0` turns -0.0 into 0.0
