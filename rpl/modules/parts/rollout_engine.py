"""Rollouts with the weights that are being trained: one call, one record of what it made."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

from rpl.core.errors import RetrieverError, RPLError
from rpl.core.records import Rollout
from rpl.environment.environment import Environment
from rpl.environment.faults import VoidRate
from rpl.modules.parts.collectives import Ranks
from rpl.modules.parts.policy_model import PolicyModel
from rpl.policy.weights.sharding import gathered
from rpl.retrieval.library.counting import CallCounts
from rpl.rollouts.loop import run_rollouts
from rpl.rollouts.requests import RolloutConfig, RolloutRequest, RolloutTiming
from rpl.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What one call of the engine made on this rank."""

    rollouts: list[Rollout]
    """One a request, in order; void ones are among them."""
    timing: RolloutTiming = field(default_factory=RolloutTiming)
    """Where the time went, and for how many tokens."""
    calls: CallCounts = field(default_factory=CallCounts)
    """Calls of retrieval, and what became of them."""
    sync_s: float = 0.0
    """Seconds in which the weights were brought to a sampler that keeps a copy of them."""

    @property
    def valid(self) -> list[Rollout]:
        """Those that infrastructure did not fail."""
        return [rollout for rollout in self.rollouts if rollout.infra_error is None]


class RolloutEngine:
    """Rolls out requests with a policy, its sampler and an environment.

    Args:
        environment: What programs run in.
        sampler: What draws completions; `None` is the built-in sampler on the trained model itself.
    """

    def __init__(self, environment: Environment, sampler: Sampler | None) -> None:
        self.environment, self.sampler = environment, sampler
        self.dtype: Literal["float32", "bfloat16"] = "float32"
        """Type of the built-in sampler's matrix products: the trainer's, so that both compute the same numbers."""

    def run(
        self,
        requests: Sequence[RolloutRequest],
        config: RolloutConfig,
        policy: PolicyModel,
        guard: VoidRate,
        ranks: Ranks,
    ) -> Rollouts:
        """Makes rollouts with the current weights. Collective; ranks may bring different numbers of requests.

        Args:
            requests: What to roll out; may be empty.
            config: Budgets and temperature.
            policy: The model with its tokenizer and renderer.
            guard: Counts void rollouts.
            ranks: The processes of the run.

        Raises:
            RPLError: Infrastructure failed, here or on another rank: all ranks raise, so that none waits for one
                that is gone.
        """
        executor = self.environment.executor
        executor.connect(policy.renderer.count_tokens)
        sampler = self._sampler()
        sampler.connect(policy.model, policy.tokenizer)
        failure, timing, before = None, RolloutTiming(), executor.counts
        rollouts: list[Rollout] = []
        with gathered(policy.model) if sampler.runs_model else nullcontext():
            try:
                rollouts = run_rollouts(
                    requests,
                    renderer=policy.renderer,
                    sampler=sampler,
                    executor=executor,
                    config=config,
                    timing=timing,
                )
                guard.check(rollouts)
            except RPLError as error:
                failure = error
        if ranks.largest(float(failure is not None)):
            raise failure or RetrieverError("retrieval failed on another rank; see its message")
        return Rollouts(rollouts, timing, executor.counts - before, sampler.last_sync_s)

    def _sampler(self) -> Sampler:
        if self.sampler is None:
            from rpl.sampling.hf.sampler import HFSampler

            self.sampler = HFSampler(dtype=self.dtype)
        return self.sampler
