"""GRPO on retrieval programs: roll out, score, compare within groups, update.

The objective is that of arXiv:2402.03300 with the changes that later work agrees on: groups without any difference in
reward are left out of everything, the loss is averaged over the trained tokens of the whole iteration and not of a
micro-batch (arXiv:2503.14476), and there is no reference model unless a KL term asks for one.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from rpl.core.errors import ConfigError
from rpl.core.progress import say
from rpl.core.records import Question
from rpl.core.seeds import derive_seed
from rpl.credit.advantages import AdvantageKind
from rpl.credit.assignment import CreditedRollout, assign_credit
from rpl.credit.rewards import check_reward
from rpl.modules.batches.logprobs import score_tokens
from rpl.modules.batches.micro_batches import MicroBatch, TrainingSequence, from_rollout, split_evenly
from rpl.modules.iteration_log import rollout_log, rollout_sums, time_log, update_log
from rpl.modules.losses import (
    Aggregation,
    KLEstimator,
    KLGradient,
    LossOutput,
    surrogate_loss,
    token_weights,
    truncated_importance,
)
from rpl.modules.losses import normaliser as loss_normaliser
from rpl.modules.parts.idle import IdleIterations
from rpl.modules.parts.rollout_engine import Rollouts
from rpl.modules.training_module import TrainingModule, add_up
from rpl.policy.modes import without_dropout
from rpl.policy.weights.lora import adapters_off
from rpl.rollouts.requests import RolloutRequest


@dataclass(frozen=True, slots=True)
class FrozenLogprobs:
    """Log-probabilities of a micro-batch that do not change while it is trained on, `(N,)` each."""

    old: Tensor | None = None
    """Denominators of the ratio; `None` where they are what the first update is about to compute."""
    reference: Tensor | None = None
    """Under the start model, where there is a KL term."""


@dataclass(frozen=True, slots=True)
class UpdatePart:
    """The share of an iteration's rollouts that one update trains on."""

    work: list[tuple[MicroBatch, FrozenLogprobs]]
    normaliser: float
    """What the loss is divided by, the same on all ranks."""


class GRPOModule(TrainingModule):
    """Trains the policy with group-relative policy optimisation on its own rollouts.

    A training batch is a list of `Question`. One training step is one iteration: `group_size` rollouts a question, then
    `updates_per_iteration * epochs` optimizer steps. `trainer.max_steps` counts optimizer steps, and an iteration in
    which there is nothing to learn counts like any other, so iterations = max_steps / (updates_per_iteration * epochs).

    Args:
        reward: Reward terms and their weights: `em`, `f1`, `format`, `coverage`, `precision` and
            `evidence_f1` (printed against gold passages), `all_gold`, `invalid`, `program_error`, `printed_tokens` (in
            hundreds), `calls`, `turns`. Costs take negative weights.
        group_size: Rollouts a question, whose rewards are compared with one another.
        advantage: `grpo` (mean and standard deviation of the group), `dr_grpo` (mean only), `rloo` (mean of the
            others) or `reinforce` (mean of the batch; allows a group size of 1).
        aggregation: Average over `token`, over `sequence`, or over sequences of a `constant` length.
        clip_low: The ratio is clipped below 1 - clip_low.
        clip_high: The ratio is clipped above 1 + clip_high.
        updates_per_iteration: Parts into which an iteration's rollouts are dealt, with one optimizer step each.
        epochs: Passes over the iteration's rollouts.
        ratio: The denominator of the ratio: `on_policy` is the trainer's own log-probability under the weights that
            sampled (no extra pass with a single update), `sampler` the log-probability that the sampler reported,
            which corrects the difference between the two.
        importance_cap: Weighs each token by min(trainer's / sampler's probability, cap) under the weights that sampled,
            for samplers that round differently; 2 is usual, `None` turns it off. Not with `ratio: sampler`.
        beta: Weight of the KL term against the start model; 0 loads no reference model.
        kl_estimator: `k1`, `k2` or `k3`.
        kl_gradient: `ratio` multiplies the estimator by the ratio, so that its gradient is unbiased too; `plain` does
            not.
        entropy_coef: Weight of an entropy bonus.
        log_entropy: Whether to measure the policy's entropy when it has no weight; costs one more pass over the logits.
        stop_after_idle: Ends the run after so many iterations in a row in which no group's rewards differ, so that
            nothing can be learnt; `None` only says so.
        **kwargs: Those of `PolicyModule`.
    """

    def __init__(
        self,
        reward: dict[str, float] = {"em": 1.0},  # noqa: B006 - read once, never changed
        group_size: int = 8,
        advantage: AdvantageKind = "grpo",
        aggregation: Aggregation = "token",
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        updates_per_iteration: int = 1,
        epochs: int = 1,
        ratio: Literal["on_policy", "sampler"] = "on_policy",
        importance_cap: float | None = None,
        beta: float = 0.0,
        kl_estimator: KLEstimator = "k3",
        kl_gradient: KLGradient = "ratio",
        entropy_coef: float = 0.0,
        log_entropy: bool = True,
        stop_after_idle: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_reward(reward)
        for key, value in (
            ("group_size", group_size),
            ("updates_per_iteration", updates_per_iteration),
            ("epochs", epochs),
            ("stop_after_idle", stop_after_idle),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"model.{key} must be at least 1, got {value}")
        lora = self.policy_model.lora
        if lora is not None and lora.dropout > 0:
            raise ConfigError(
                f"model.lora.dropout must be 0 in RL, got {lora.dropout}: the ratio of each token would be noisy"
            )
        if group_size == 1 and advantage != "reinforce":
            raise ConfigError(f"model.group_size 1 leaves nothing to compare; advantage {advantage!r} needs at least 2")
        for key, number in (("clip_low", clip_low), ("clip_high", clip_high), ("beta", beta)):
            if number < 0:
                raise ConfigError(f"model.{key} must be at least 0, got {number}")
        if beta > 0 and (kl_estimator, kl_gradient) == ("k1", "plain"):
            raise ConfigError(
                "model.kl_estimator k1 with kl_gradient plain has a gradient of zero on average; use ratio"
            )
        if importance_cap is not None and not importance_cap > 0:
            raise ConfigError(f"model.importance_cap must be positive, got {importance_cap}")
        if importance_cap is not None and ratio == "sampler":
            raise ConfigError(
                "model.importance_cap corrects what model.ratio sampler corrects already; use one of them"
            )
        self.reward = dict(reward)
        self.group_size, self.advantage, self.aggregation = group_size, advantage, aggregation
        self.clip_low, self.clip_high = clip_low, clip_high
        self.updates_per_iteration, self.epochs, self.ratio = updates_per_iteration, epochs, ratio
        self.importance_cap = importance_cap
        self.beta, self.kl_estimator, self.kl_gradient = beta, kl_estimator, kl_gradient
        self.entropy_coef, self.log_entropy = entropy_coef, log_entropy
        self.updates_per_step = updates_per_iteration * epochs
        self.idle = IdleIterations(stop_after_idle)
        """Counts iterations in which nothing could be learnt."""
        self._reference: list[Any] = []  # in a list, so that it is no submodule: it is never saved and never trained

    def setup(self, stage: str) -> None:
        """Checks the settings that only the Trainer knows.

        Raises:
            ConfigError: Temperature 0, or `trainer.max_steps` does not end with an iteration.
        """
        super().setup(stage)
        if stage != "fit":
            return
        if self.rollout.temperature == 0:
            raise ConfigError("model.rollout.temperature must be positive in training: greedy groups do not differ")
        if self.trainer.max_steps > 0 and self.trainer.max_steps % self.updates_per_step:
            raise ConfigError(
                f"trainer.max_steps ({self.trainer.max_steps}) must be a multiple of updates_per_iteration * epochs "
                f"({self.updates_per_step})"
            )

    def configure_model(self) -> None:
        """Builds the policy and, if there is a KL term, the frozen start model beside it; adapters have it inside."""
        if self.model is not None:
            return
        super().configure_model()
        if self.beta > 0 and self.policy_model.lora is None:
            self._reference = [self.policy_model.frozen_start(self.device_mesh, self.sharded_dtype)]

    def on_fit_start(self) -> None:
        """Moves the reference model to where the policy is."""
        self._reference = [reference.to(self.device) for reference in self._reference]

    def on_train_start(self) -> None:
        """Turns dropout off: log-probabilities must be those that the sampler drew with."""
        without_dropout(self.model, self.policy_model.activation_checkpointing)

    def on_train_end(self) -> None:
        """Says how often nothing could be learnt, and puts the model back into training mode."""
        summary = self.idle.summary(self.iteration)
        if summary is not None and self.global_rank == 0:
            say(summary)
        self.model.train()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the count of idle iterations."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["rpl"] |= {"idle": self.idle.total, "idle_in_a_row": self.idle.in_a_row}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores it."""
        super().on_load_checkpoint(checkpoint)
        self.idle.total = checkpoint["rpl"].get("idle", 0)
        self.idle.in_a_row = checkpoint["rpl"].get("idle_in_a_row", 0)

    # -- one iteration, from top to bottom -----------------------------------------------------------------------

    def training_step(self, batch: list[Question], batch_idx: int) -> dict[str, list[CreditedRollout]]:
        """Runs one iteration on a list of questions.

        Returns:
            `rollouts`: what became of the rollouts of this rank, for callbacks to record.
        """
        made = self.roll_out(self.requests(batch), self.rollout, self.guard)
        credited = self.credit(made, batch)
        kept = [from_rollout(c.rollout, c.advantage) for c in credited if c.kept]
        log = rollout_log(self.ranks.sums(rollout_sums(credited, made, self.reward)), self.reward)

        start = time.perf_counter()
        parts = self.parts(kept)
        totals = self.optimise(parts)
        log |= update_log(totals, self.updates_per_step)
        log |= self._times(made, time.perf_counter() - start, sum(len(s.token_ids) for s in kept))

        self.iteration += 1
        log["train/idle_iterations"] = self._count_idle(log["train/kept_rate"] == 0)
        log["train/lr"] = self.learning_rate
        self.log("train/reward", log.pop("train/reward"), prog_bar=True, batch_size=len(batch))
        self.log_dict(log, batch_size=len(batch))  # every value is the same on all ranks by now
        return {"rollouts": credited}

    def requests(self, questions: list[Question]) -> list[RolloutRequest]:
        """The rollouts of an iteration; group ids and seeds are functions of iteration, question and sample."""
        requests = []
        occurrences: Counter[str] = Counter()
        for question in questions:
            repeat = occurrences[question.id]
            occurrences[question.id] += 1
            group_id = f"{self.iteration}/{question.id}" + (f"#{repeat}" if repeat else "")
            requests += [
                RolloutRequest(question, group_id, i, derive_seed(self.seed, group_id, i))
                for i in range(self.group_size)
            ]
        return requests

    def credit(self, made: Rollouts, questions: list[Question]) -> list[CreditedRollout]:
        """Rewards and advantages of the rollouts of this rank; collective."""
        return assign_credit(made.rollouts, questions, self.reward, self.advantage, self.ranks.joined)

    def parts(self, kept: list[TrainingSequence]) -> list[UpdatePart]:
        """Deals the sequences of this rank to the iteration's updates, and computes what stays fixed; collective."""
        parts: list[UpdatePart] = []
        for indices in split_evenly(len(kept), self.updates_per_iteration):
            sequences = [kept[i] for i in indices]
            tokens, rows = sum(s.num_trained for s in sequences), sum(s.num_trained > 0 for s in sequences)
            counts = self.ranks.sums({"tokens": float(tokens), "rows": float(rows)})
            length = self.rollout.max_turns * self.rollout.max_new_tokens
            normaliser = loss_normaliser(self.aggregation, counts["tokens"], counts["rows"], length)
            batches = self.pack(self._needed(sequences))
            parts.append(UpdatePart([(batch, self._freeze(batch, first=not parts)) for batch in batches], normaliser))
        return parts

    def optimise(self, parts: list[UpdatePart]) -> dict[str, float]:
        """Makes the iteration's updates and returns the sums of what they computed; collective."""
        totals: dict[str, float] = {}
        for number in range(self.updates_per_step):
            part = parts[number % len(parts)]
            # Only the first update computes under the weights that sampled.
            update = self.update(part.work, partial(self.loss, normaliser=part.normaliser, with_gap=number == 0))
            add_up(totals, update.sums)
            if number == 0 and self.ratio == "on_policy":
                # What it computed are the old log-probabilities of its micro-batches, for later epochs.
                pairs = zip(part.work, update.logprobs, strict=True)
                parts = [replace(part, work=[(b, replace(f, old=old)) for (b, f), old in pairs]), *parts[1:]]
        return totals

    def loss(self, batch: MicroBatch, frozen: FrozenLogprobs, normaliser: float, with_gap: bool) -> LossOutput:
        """Computes a micro-batch's part of the loss.

        Args:
            batch: The micro-batch.
            frozen: What stays fixed while it is trained on.
            normaliser: What the sum over its tokens is divided by.
            with_gap: Whether to compare with the sampler's log-probabilities.
        """
        entropy: Literal["none", "detached", "grad"] = "detached" if self.log_entropy else "none"
        if self.entropy_coef != 0:
            entropy = "grad"
        logprobs, entropies = self.token_logprobs(batch, self.rollout.temperature, entropy)
        weights = token_weights(batch.loss_mask, self.aggregation)
        sampled = batch.sampler_logprobs[batch.loss_mask]
        sums: dict[str, Tensor] = {}
        if self.importance_cap is not None:
            old = logprobs.detach() if frozen.old is None else frozen.old
            importance = truncated_importance(old, sampled, self.importance_cap)
            weights = weights * importance
            sums["importance"] = importance.sum()
            sums["importance_capped"] = (importance >= self.importance_cap).sum().float()
        output = surrogate_loss(
            logprobs,
            batch.advantages[batch.loss_mask],
            weights,
            normaliser,
            old_logprobs=frozen.old,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            ref_logprobs=frozen.reference,
            beta=self.beta,
            kl_estimator=self.kl_estimator,
            kl_gradient=self.kl_gradient,
            entropies=entropies if entropy != "none" else None,
            entropy_coef=self.entropy_coef,
        )
        if with_gap:
            sums |= {"gap": (output.logprobs - sampled).abs().sum(), "gap_tokens": output.sums["tokens"]}
        return replace(output, sums=output.sums | sums)

    def _needed(self, part: list[TrainingSequence]) -> list[TrainingSequence]:
        """Leaves out sequences without gradient: their tokens stay in the normaliser, but nothing is computed."""
        if self.beta != 0 or self.entropy_coef != 0:
            return part
        return [s for s in part if s.advantage != 0]

    @torch.no_grad()
    def _freeze(self, batch: MicroBatch, first: bool) -> FrozenLogprobs:
        """Computes what stays fixed; the first update runs under the weights that sampled and needs no pass for it."""
        reference = self.reference_logprobs(batch) if self.beta > 0 else None
        if self.ratio == "sampler":
            return FrozenLogprobs(batch.sampler_logprobs[batch.loss_mask], reference)
        if first:
            return FrozenLogprobs(None, reference)
        return FrozenLogprobs(self.token_logprobs(batch, self.rollout.temperature)[0], reference)

    @torch.no_grad()
    def reference_logprobs(self, batch: MicroBatch) -> Tensor:
        """`(N,)` log-probabilities of the trained tokens under the start model."""
        temperature = self.rollout.temperature
        if self.policy_model.lora is not None:
            with adapters_off(self.model):
                return self.token_logprobs(batch, temperature)[0]
        chunk = self.logprob_chunk_tokens
        return score_tokens(self._reference[0], batch, temperature=temperature, chunk_tokens=chunk)[0]

    def _count_idle(self, idle: bool) -> float:
        line = self.idle.count(idle)
        if line is not None and self.global_rank == 0:
            say(f"iteration {self.iteration}: {line}")
        self.trainer.should_stop = self.trainer.should_stop or self.idle.stops
        return float(self.idle.in_a_row)

    def _times(self, made: Rollouts, update_s: float, updated: int) -> dict[str, float]:
        timing = made.timing
        seconds = {"generate_s": timing.generate_s, "execute_s": timing.execute_s, "wait_s": timing.wait_s}
        seconds |= {"sync_s": made.sync_s, "update_s": update_s}
        slowest = {name: self.ranks.largest(value) for name, value in seconds.items()}
        counts = self.ranks.sums({"generated": float(timing.generated_tokens), "updated": float(updated)})
        return time_log(slowest, self.ranks.largest(timing.wall_s), counts["generated"], counts["updated"])
