"""Stops a run whose retrieval is broken, instead of letting it train on the rollouts that happened to survive."""

from __future__ import annotations

from collections.abc import Sequence

from rpl.core.errors import ConfigError, RetrieverError
from rpl.core.records import Rollout

_CHANCE = 0.001


class InfraGuard:
    """Counts void rollouts and raises past a rate.

    A void rollout is one in which retrieval or the sandbox itself failed. It is not a wrong answer: it enters no loss,
    no baseline and no score.

    The rule is a test, so that one fault in a small batch is forgiven and a dead retriever is not: the run stops when
    so many void rollouts would come about by chance with probability below 0.001 if the true rate were `max_rate`. At
    the default rate that is the third of 32 rollouts, or the seventh of 256.

    Args:
        max_rate: Largest tolerated share of void rollouts, in [0, 1].
    """

    def __init__(self, max_rate: float = 0.005) -> None:
        if not 0.0 <= max_rate <= 1.0:
            raise ConfigError(f"max_rate must be in [0, 1], got {max_rate}")
        self.max_rate = max_rate
        self.seen = 0
        self.void = 0

    @property
    def rate(self) -> float:
        """Share of void rollouts so far; 0 before the first."""
        return self.void / self.seen if self.seen else 0.0

    def check(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Counts a batch and returns the rollouts that are not void.

        Raises:
            RetrieverError: All rollouts of the batch are void, or too many since the start for the allowed rate.
        """
        causes = [r.infra_error for r in rollouts if r.infra_error is not None]
        self.seen += len(rollouts)
        self.void += len(causes)
        if causes and len(causes) == len(rollouts):
            raise RetrieverError(f"all {len(causes)} rollouts of a batch are void: {_summary(causes)}")
        if self.void and binomial_tail(self.void, self.seen, self.max_rate) < _CHANCE:
            raise RetrieverError(
                f"{self.void} of {self.seen} rollouts are void ({self.rate:.2%}, allowed {self.max_rate:.2%}); "
                f"the latest: {_summary(causes)}"
            )
        return [r for r in rollouts if r.infra_error is None]


def binomial_tail(count: int, trials: int, rate: float) -> float:
    """Probability of at least `count` successes in `trials` independent trials of probability `rate`.

    >>> round(binomial_tail(1, 2, 0.5), 6)
    0.75
    """
    from scipy.stats import binom

    return float(binom.sf(count - 1, trials, rate))


def _summary(causes: Sequence[str]) -> str:
    if not causes:
        return "none in this batch"
    counts = {cause: causes.count(cause) for cause in dict.fromkeys(causes)}
    worst = sorted(counts.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{cause} ({count}×)" for cause, count in worst)
