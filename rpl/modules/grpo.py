"""GRPO on retrieval programs: roll out, score, compare within groups, update.

The objective is that of arXiv:2402.03300 with the changes that later work agrees on: groups without any difference in
reward are left out of everything, the loss is averaged over the trained tokens of the whole iteration and not of a
micro-batch (arXiv:2503.14476), and there is no reference model unless a KL term asks for one.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rpl.core.answers import exact_match
from rpl.core.errors import ConfigError
from rpl.core.records import Question, Rollout
from rpl.core.seeds import derive_seed
from rpl.credit.advantages import AdvantageKind, group_advantages
from rpl.credit.rewards import check_reward, score
from rpl.modules.batches.logprobs import score_tokens
from rpl.modules.batches.micro_batches import MicroBatch, TrainingSequence, from_rollout, split_evenly
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
from rpl.modules.training import TrainingModule
from rpl.policy.lora import adapters_off
from rpl.rollouts.loop import RolloutRequest


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with what became of it in training; `last_scored` holds those of the latest iteration."""

    rollout: Rollout
    reward: float | None
    """`None` if the rollout is void."""
    terms: dict[str, float]
    """Unweighted reward terms."""
    em: float
    advantage: float
    kept: bool
    """Whether it entered the loss: it is not void, and its group's rewards differ."""


@dataclass(slots=True)
class Fixed:
    """Log-probabilities of a micro-batch that do not change while it is trained on, `(N,)` each."""

    old: Tensor | None = None
    """Denominators of the ratio; `None` until the first update has computed them on the way."""
    ref: Tensor | None = None
    """Under the reference model."""
    sampled: Tensor | None = None
    """The trainer's, under the weights that sampled, where importance weights need them."""


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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_reward(reward)
        for key, value in (
            ("group_size", group_size),
            ("updates_per_iteration", updates_per_iteration),
            ("epochs", epochs),
        ):
            if value < 1:
                raise ConfigError(f"model.{key} must be at least 1, got {value}")
        if self.lora is not None and self.lora.dropout > 0:
            raise ConfigError(
                f"model.lora.dropout must be 0 in RL, got {self.lora.dropout}: the ratio of each token would be noisy"
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
        self.last_scored: list[ScoredRollout] = []
        """What the latest iteration made of the rollouts of this rank, for callbacks to record."""
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
        if self.beta > 0 and self.lora is None:
            reference, _ = self.load_frozen()
            self.shard(reference)
            self._reference = [reference]

    def on_fit_start(self) -> None:
        """Moves the reference model to where the policy is."""
        self._reference = [reference.to(self.device) for reference in self._reference]

    # -- one iteration -------------------------------------------------------------------------------------------

    def training_step(self, batch: list[Question], batch_idx: int) -> None:
        """Runs one iteration on a list of questions."""
        rollouts, valid, seconds = self.roll_out(self.requests(batch), self.rollout, self._guard)
        scored, log = self._score(rollouts, valid, {q.id: q for q in batch})
        self.last_scored = scored
        kept = [from_rollout(s.rollout, s.advantage) for s in scored if s.kept]

        start = time.perf_counter()
        log |= self._optimise(kept)
        seconds["update_s"] = time.perf_counter() - start
        self.iteration += 1
        log |= self._times(seconds, sum(len(s.token_ids) for s in kept))
        log["train/lr"] = self.learning_rate
        self.log("train/reward", log.pop("train/reward"), prog_bar=True, batch_size=len(batch))
        self.log_dict(log, batch_size=len(batch))  # every value is the same on all ranks by now

    def _times(self, seconds: dict[str, float], tokens: int) -> dict[str, float]:
        """Seconds of the slowest rank, tokens a second over all ranks, and the share of time that programs held up."""
        counts = self.reduce_sums({"generated": float(self.last_timing.generated_tokens), "updated": float(tokens)})
        slowest = {name: self.reduce_max(value) for name, value in seconds.items()}
        total = self.reduce_max(self.last_timing.wall_s) + slowest["update_s"]
        return {f"time/{name}": value for name, value in slowest.items()} | {
            "time/generate_tokens_per_s": counts["generated"] / max(slowest["generate_s"], 1e-9),
            "time/update_tokens_per_s": counts["updated"] / max(slowest["update_s"], 1e-9),
            "time/wait_share": slowest["wait_s"] / max(total, 1e-9),
        }

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

    def _score(
        self, rollouts: list[Rollout], valid: list[Rollout], questions: dict[str, Question]
    ) -> tuple[list[ScoredRollout], dict[str, float]]:
        rewards = [score(r, questions[r.question_id], self.reward) for r in valid]
        totals = [reward.total for reward in rewards]
        groups = [r.group_id for r in valid]
        everyone = self.gather_lists(totals)
        advantages = group_advantages(totals, groups, self.advantage, batch_rewards=everyone)
        em = [exact_match(r.answer, questions[r.question_id].answers) for r in valid]
        scored = [
            ScoredRollout(r, reward.total, reward.terms, e, float(a), bool(k))
            for r, reward, e, a, k in zip(valid, rewards, em, advantages.values, advantages.keep, strict=True)
        ]
        sums = {"valid": float(len(valid)), "reward": sum(totals), "reward_squares": sum(t * t for t in totals)}
        sums |= {f"reward_{name}": sum(r.terms[name] for r in rewards) for name in self.reward}
        sums |= {"em": sum(em), "kept": float(sum(s.kept for s in scored))} | _group_sums(totals, groups, em)
        sums |= _rollout_sums(rollouts, valid)
        calls = self.last_calls
        counts = {"calls": calls.attempted, "calls_empty": calls.empty, "calls_failed": calls.failed}
        sums |= {name: float(count) for name, count in counts.items()}
        void = [ScoredRollout(r, None, {}, 0.0, 0.0, False) for r in rollouts if r.infra_error is not None]
        return scored + void, _summarise(self.reduce_sums(sums), self.reward)

    def _optimise(self, kept: list[TrainingSequence]) -> dict[str, float]:
        """Makes the iteration's updates and returns their means, weighted by tokens."""
        parts = [[kept[i] for i in part] for part in split_evenly(len(kept), self.updates_per_iteration)]
        updates: list[tuple[list[tuple[MicroBatch, Fixed]], float]] = []
        for part in parts:
            counts = self.reduce_sums(
                {"tokens": float(sum(s.num_trained for s in part)), "rows": float(sum(s.num_trained > 0 for s in part))}
            )
            length = self.rollout.max_turns * self.rollout.max_new_tokens
            z = loss_normaliser(self.aggregation, counts["tokens"], counts["rows"], length)
            first = not updates
            updates.append(([(b, self._fix(b, first)) for b in self.pack(self._needed(part))], z))
        totals: dict[str, float] = {}
        for number in range(self.updates_per_step):
            work, z = updates[number % len(updates)]
            with_gap = number == 0  # only the first update computes under the weights that sampled
            result = self.update(work, lambda b, fixed, z=z, gap=with_gap: self._loss(b, fixed, z, gap))  # type: ignore[misc]
            for name, value in result.items():
                totals[name] = totals.get(name, 0.0) + value
        return _update_log(totals, self.updates_per_step)

    def _needed(self, part: list[TrainingSequence]) -> list[TrainingSequence]:
        """Leaves out sequences without gradient: their tokens stay in the normaliser, but nothing is computed."""
        if self.beta != 0 or self.entropy_coef != 0:
            return part
        return [s for s in part if s.advantage != 0]

    @torch.no_grad()
    def _fix(self, batch: MicroBatch, first: bool) -> Fixed:
        fixed = Fixed()
        # The first update runs under the weights that sampled: what it computes are the old log-probabilities.
        if self.ratio == "sampler":
            fixed.old = batch.sampler_logprobs[batch.loss_mask]
        elif not first:
            fixed.old, _ = self.token_logprobs(batch, self.rollout.temperature)
            fixed.sampled = fixed.old
        if self.beta > 0:
            fixed.ref = self.reference_logprobs(batch)
        return fixed

    @torch.no_grad()
    def reference_logprobs(self, batch: MicroBatch) -> Tensor:
        """`(N,)` log-probabilities of the trained tokens under the start model."""
        temperature = self.rollout.temperature
        if self.lora is not None:
            with adapters_off(self.model):
                return self.token_logprobs(batch, temperature)[0]
        chunk = self.logprob_chunk_tokens
        return score_tokens(self._reference[0], batch, temperature=temperature, chunk_tokens=chunk)[0]

    def _loss(self, batch: MicroBatch, fixed: Fixed, normaliser: float, with_gap: bool) -> LossOutput:
        entropy: Literal["none", "detached", "grad"] = "detached" if self.log_entropy else "none"
        if self.entropy_coef != 0:
            entropy = "grad"
        logprobs, entropies = self.token_logprobs(batch, self.rollout.temperature, entropy)
        weights = token_weights(batch.loss_mask, self.aggregation)
        importance: Tensor | None = None
        old = fixed.old
        if self.ratio == "on_policy" and old is None:
            fixed.old = fixed.sampled = logprobs.detach()  # for later epochs; now the ratio is 1
        if self.importance_cap is not None and fixed.sampled is not None:
            sampler = batch.sampler_logprobs[batch.loss_mask]
            importance = truncated_importance(fixed.sampled, sampler, self.importance_cap)
            weights = weights * importance
        output = surrogate_loss(
            logprobs,
            batch.advantages[batch.loss_mask],
            weights,
            normaliser,
            old_logprobs=old,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            ref_logprobs=fixed.ref,
            beta=self.beta,
            kl_estimator=self.kl_estimator,
            kl_gradient=self.kl_gradient,
            entropies=entropies if entropy != "none" else None,
            entropy_coef=self.entropy_coef,
        )
        if importance is not None and self.importance_cap is not None:
            output.sums["importance"] = importance.sum()
            output.sums["importance_capped"] = (importance >= self.importance_cap).sum().float()
        if with_gap:
            gap = (logprobs.detach() - batch.sampler_logprobs[batch.loss_mask]).abs()
            output.sums["gap"] = gap.sum()
            output.sums["gap_tokens"] = output.sums["tokens"]
        return output


def _group_sums(totals: list[float], groups: list[str], em: list[float]) -> dict[str, float]:
    """Counts groups, and those whose rewards are all equal: all right, or all wrong."""
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    equal = [rows for rows in members.values() if len({totals[i] for i in rows}) == 1]
    right = sum(all(em[i] == 1.0 for i in rows) for rows in equal)
    return {"groups": float(len(members)), "all_right": float(right), "all_wrong": float(len(equal) - right)}


def _rollout_sums(rollouts: list[Rollout], valid: list[Rollout]) -> dict[str, float]:
    traces = [trace for r in valid for trace in r.traces]
    return {
        "rollouts": float(len(rollouts)),
        "completion_tokens": float(sum(sum(r.completion_mask) for r in valid)),
        "printed_tokens": float(sum(r.printed_tokens for r in valid)),
        "primitive_calls": float(sum(r.num_calls for r in valid)),
        "turns": float(sum(len(r.turns) for r in valid)),
        "invalid": float(sum(r.invalid is not None for r in valid)),
        "truncated": float(sum(r.invalid == "truncated" for r in valid)),
        "forged": float(sum(r.invalid == "forgery" for r in valid)),
        "programs": float(len(traces)),
        "errors": float(sum(t.error is not None for t in traces)),
        "timeouts": float(sum(t.error is not None and t.error.kind == "timeout" for t in traces)),
    }


def _summarise(sums: dict[str, float], reward: dict[str, float]) -> dict[str, float]:
    valid, programs, groups = max(1.0, sums["valid"]), max(1.0, sums["programs"]), max(1.0, sums["groups"])
    mean = sums["reward"] / valid
    log = {
        "train/reward": mean,
        "train/reward_std": max(0.0, sums["reward_squares"] / valid - mean**2) ** 0.5,
        "train/em": sums["em"] / valid,
        "train/kept_rate": sums["kept"] / valid,
        "train/groups_all_right": sums["all_right"] / groups,
        "train/groups_all_wrong": sums["all_wrong"] / groups,
        "rollout/void_rate": 1.0 - sums["valid"] / max(1.0, sums["rollouts"]),
        "rollout/retrieval_calls": sums["calls"],
        "rollout/retrieval_empty_rate": sums["calls_empty"] / max(1.0, sums["calls"]),
        "rollout/retrieval_failed_rate": sums["calls_failed"] / max(1.0, sums["calls"]),
        "rollout/program_error_rate": sums["errors"] / programs,
        "rollout/timeout_rate": sums["timeouts"] / programs,
        "rollout/invalid_rate": sums["invalid"] / valid,
        "rollout/truncated_rate": sums["truncated"] / valid,
        "rollout/forged_rate": sums["forged"] / valid,
    }
    log |= {f"train/reward_{name}": sums[f"reward_{name}"] / valid for name in reward}
    for name in ("completion_tokens", "printed_tokens", "primitive_calls", "turns"):
        log[f"rollout/{name}"] = sums[name] / valid
    return log


def _update_log(totals: dict[str, float], updates: int) -> dict[str, float]:
    """Means over the trained tokens of all updates. An iteration without work logs a loss of 0 and nothing else."""
    tokens = max(1.0, totals.get("tokens", 0.0))
    log = {
        "train/loss": totals.get("loss", 0.0) / updates,
        "train/tokens": totals.get("tokens", 0.0),
        "train/grad_norm": totals.get("grad_norm", 0.0) / updates,
    }
    names = {"ratio": "ratio", "clipped": "clip_fraction", "approx_kl": "approx_kl", "kl": "kl", "entropy": "entropy"}
    names |= {"importance": "importance", "importance_capped": "importance_capped"}
    log |= {f"train/{name}": totals[key] / tokens for key, name in names.items() if key in totals}
    if totals.get("gap_tokens"):
        log["train/sampler_gap"] = totals["gap"] / totals["gap_tokens"]
    return log
