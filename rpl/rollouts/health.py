"""Stops a run whose retrieval is broken, instead of letting it train on the rollouts that happened to survive."""

from __future__ import annotations

from collections.abc import Sequence

from rpl.errors import ConfigError, RetrieverError
from rpl.types import Rollout


class InfraGuard:
    """Counts void rollouts and raises past a rate.

    A void rollout is one in which retrieval or the sandbox itself failed. It is not a wrong answer: it enters no loss,
    no baseline and no score.

    Args:
        max_rate: Largest tolerated share of void rollouts since the start, in [0, 1].
        min_rollouts: The rate is judged once this many rollouts were seen; a batch that is void as a whole stops the
            run at once.
    """

    def __init__(self, max_rate: float = 0.005, min_rollouts: int = 256) -> None:
        if not 0.0 <= max_rate <= 1.0:
            raise ConfigError(f"max_rate must be in [0, 1], got {max_rate}")
        if min_rollouts < 1:
            raise ConfigError(f"min_rollouts must be at least 1, got {min_rollouts}")
        self.max_rate = max_rate
        self.min_rollouts = min_rollouts
        self.seen = 0
        self.void = 0

    @property
    def rate(self) -> float:
        """Share of void rollouts so far; 0 before the first."""
        return self.void / self.seen if self.seen else 0.0

    def check(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Counts a batch and returns the rollouts that are not void.

        Raises:
            RetrieverError: All rollouts of the batch are void, or the rate since the start is above `max_rate`.
        """
        causes = [r.infra_error for r in rollouts if r.infra_error is not None]
        self.seen += len(rollouts)
        self.void += len(causes)
        if causes and len(causes) == len(rollouts):
            raise RetrieverError(f"all {len(causes)} rollouts of a batch are void: {_summary(causes)}")
        if self.seen >= self.min_rollouts and self.rate > self.max_rate:
            raise RetrieverError(
                f"{self.void} of {self.seen} rollouts are void ({self.rate:.2%}, allowed {self.max_rate:.2%}); "
                f"the latest: {_summary(causes)}"
            )
        return [r for r in rollouts if r.infra_error is None]


def _summary(causes: Sequence[str]) -> str:
    if not causes:
        return "none in this batch"
    counts = {cause: causes.count(cause) for cause in dict.fromkeys(causes)}
    worst = sorted(counts.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{cause} ({count}×)" for cause, count in worst)
