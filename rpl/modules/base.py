"""What all modules share: the policy (built, warm-started, sharded, exported), its environment, and evaluation."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from rpl.core.errors import CheckpointError, ConfigError, RetrieverError, RPLError
from rpl.core.records import Question, Rollout, to_dict
from rpl.core.seeds import derive_seed
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.environment.void_rate import InfraGuard
from rpl.executors.base import Executor
from rpl.modules.batches.logprobs import check_scorable, score_tokens
from rpl.modules.batches.micro_batches import MicroBatch
from rpl.modules.learning_rate import lr_factor
from rpl.modules.ranks import RankWatch
from rpl.modules.rollout_metrics import RolloutMetrics
from rpl.policy.loading import export_policy, load_policy
from rpl.policy.lora import LoRAConfig, add_lora, check_frozen, frozen_sums
from rpl.policy.renderer import Renderer
from rpl.policy.sharding import full_model, gathered, is_sharded, shard
from rpl.retrieval.library.counting import CallCounts
from rpl.rollouts.loop import RolloutConfig, RolloutRequest, RolloutTiming
from rpl.rollouts.recovery import run_with_retries
from rpl.sampling.sampler import Sampler

PRECISIONS = ("32-true", "bf16-mixed")
"""Weights and optimizer state are always float32: in bfloat16, updates of these sizes would round to nothing."""


class PolicyModule(LightningModule, ABC):
    """A policy that writes retrieval programs, with everything needed to run and evaluate it.

    Validation and test batches are lists of `Question`; each is answered greedily and scored as `val/em`, `val/f1`,
    `val/evidence_recall` and so on (see `RolloutMetrics`), over all ranks, without padding. `predict` returns the
    rollouts as dictionaries.

    Args:
        policy: The language model: a folder, a hub name, `smollm2-135m` or `tiny`.
        init_from: Folder of a trained policy to start from, such as one that SFT exported. This is a warm start: step
            counters and optimizer start afresh. To go on with an interrupted run use `--ckpt_path` instead.
        lora: Train low-rank adapters and leave the weights as they are: `{rank: 16, alpha: 32, dropout: 0.0,
            target_modules: all-linear, base_dtype: float32}`. Checkpoints then hold the adapters only, and the policy
            is exported with the adapters folded in, as an ordinary model. `None` trains all weights.
        prompt_style: `compact` (about thirty tokens, for small models) or `documented` (the language in full).
        thinking: Whether the policy may write plain text before a program or an answer.
        environment: Corpus, search backends, budgets and sandbox workers.
        rollout: Turns, tokens and temperature of rollouts. Evaluation is the same at temperature 0.
        eval_max_turns: Most completions in an evaluation rollout; `None` takes `rollout.max_turns`.
        eval_max_new_tokens: Most tokens of one completion in evaluation; `None` takes `rollout.max_new_tokens`.
        sampler: What draws completions; `None` is the built-in sampler on the trained model itself.
        optimizer: Makes the optimizer from the parameters. When a run is resumed, the checkpoint's learning rate wins.
        lr_schedule: `constant`, `linear` or `cosine`; the falling ones end at `trainer.max_steps`.
        warmup_steps: Updates over which the learning rate climbs.
        gradient_clip: Largest global gradient norm; 0 turns clipping off. (The Trainer's own option cannot be used.)
        packing: `shared` computes no padding, and what rollouts begin with in common only once; `plain` pads rows.
            Both give the same numbers; a run whose model does not give them says so and goes on with `plain`.
        tokens_per_micro_batch: Computed tokens in one forward and backward pass. Changes memory and speed, not results.
            `None` takes 3072 on a CPU and 16384 elsewhere.
        logprob_chunk_tokens: Tokens whose logits over the vocabulary exist at the same time.
        activation_checkpointing: Compute activations again in the backward pass: slower, much less memory.
        max_void_rate: Tolerated share of training rollouts that infrastructure may fail for good, after retries and
            pauses (`environment.health`); significantly more stop the run.
        score_void: Whether validation and test scores may leave out questions that infrastructure failed, up to the
            same rate. Otherwise one such question stops the run: a score over fewer questions is another score.
        seed: Names the sampling noise.
    """

    def __init__(
        self,
        policy: str = "smollm2-135m",
        init_from: str | None = None,
        lora: LoRAConfig | None = None,
        prompt_style: Literal["compact", "documented"] = "compact",
        thinking: bool = True,
        environment: EnvironmentConfig = EnvironmentConfig(),
        rollout: RolloutConfig = RolloutConfig(),
        eval_max_turns: int | None = None,
        eval_max_new_tokens: int | None = None,
        sampler: Sampler | None = None,
        optimizer: OptimizerCallable = lambda params: torch.optim.AdamW(
            params, lr=1e-5, weight_decay=0.0, fused=True
        ),  # constants only, or the saved config cannot name it
        lr_schedule: Literal["constant", "linear", "cosine"] = "constant",
        warmup_steps: int = 0,
        gradient_clip: float = 1.0,
        packing: Literal["shared", "plain"] = "shared",
        tokens_per_micro_batch: int | None = None,
        logprob_chunk_tokens: int = 1024,
        activation_checkpointing: bool = False,
        max_void_rate: float = 0.005,
        score_void: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for key, value, least in (
            ("warmup_steps", warmup_steps, 0),
            ("gradient_clip", gradient_clip, 0),
            ("tokens_per_micro_batch", tokens_per_micro_batch, 1),
            ("logprob_chunk_tokens", logprob_chunk_tokens, 1),
        ):
            if value is not None and not value >= least:
                raise ConfigError(f"model.{key} must be at least {least}, got {value}")
        self.automatic_optimization = False
        self.policy, self.init_from, self.lora = policy, init_from, lora
        self.prompt_style, self.thinking = prompt_style, thinking
        self.environment = Environment(environment)
        self.rollout = rollout
        self.eval_rollout = dataclasses.replace(
            rollout,
            temperature=0.0,
            max_turns=eval_max_turns or rollout.max_turns,
            max_new_tokens=eval_max_new_tokens or rollout.max_new_tokens,
        )
        self.sampler = sampler
        self.make_optimizer = optimizer
        self.lr_schedule, self.warmup_steps, self.gradient_clip = lr_schedule, warmup_steps, gradient_clip
        self.packing = packing
        self.tokens_per_micro_batch, self.logprob_chunk_tokens = tokens_per_micro_batch, logprob_chunk_tokens
        self.activation_checkpointing = activation_checkpointing
        self.seed = seed

        self.model: Any = None
        self.tokenizer: Any = None
        self.renderer: Renderer
        self.iteration = 0
        """Iterations (training steps) that were completed, over all resumes."""
        self.last_rollouts: list[Rollout] = []
        """Rollouts of the latest training iteration or evaluation batch on this rank, void ones included."""
        self.last_timing = RolloutTiming()
        """Where their time went, and for how many tokens."""
        self.last_calls = CallCounts()
        """Calls of retrieval that they made on this rank, and what became of them."""
        self.scores = RolloutMetrics()
        self._guard, self._eval_guard = InfraGuard(max_void_rate), InfraGuard(max_void_rate if score_void else 0.0)
        self._given_executor: Executor | None = None

    @abstractmethod
    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Runs one iteration."""

    # -- building ------------------------------------------------------------------------------------------------

    def configure_model(self) -> None:
        """Loads the policy, puts adapters in if asked to, and shards it where the strategy brings a device mesh."""
        if self.model is not None:
            return
        self.model, self.tokenizer = self.load_frozen()
        if self.lora is None:
            self.model.requires_grad_(True)
        else:
            add_lora(self.model, self.lora, derive_seed(self.seed, "lora", 0))
        self.model.train()
        self.renderer = Renderer(self.tokenizer, self.prompt_style, self.thinking)
        self.environment.connect(self.renderer.count_tokens)
        if self.activation_checkpointing:
            # transformers renamed the method in 5.2x; both recompute without re-entrant autograd.
            new = getattr(self.model, "activation_checkpointing_enable", None)
            (new or self.model.gradient_checkpointing_enable)()
        self.shard(self.model)

    def load_frozen(self) -> tuple[Any, Any]:
        """Loads the start model and its tokenizer, unsharded and without gradients."""
        model, tokenizer = load_policy(self.start_model, "float32" if self.lora is None else self.lora.base_dtype)
        check_scorable(model)
        return model.requires_grad_(False), tokenizer

    @property
    def start_model(self) -> str:
        """Where the weights come from that training starts with."""
        return self.init_from or self.policy

    def shard(self, model: Any) -> None:
        """Shards a model as the strategy asks for; does nothing under other strategies."""
        if self.device_mesh is not None:
            shard(model, self.device_mesh, torch.bfloat16 if self.trainer.precision == "bf16-mixed" else None)

    def setup(self, stage: str) -> None:
        """Checks the settings that only the Trainer knows.

        Raises:
            ConfigError: The precision is not supported.
        """
        if self.trainer.precision not in PRECISIONS:
            raise ConfigError(f"trainer.precision must be one of {', '.join(PRECISIONS)}; got {self.trainer.precision}")

    def configure_callbacks(self) -> list[Callback]:
        """Several processes watch one another, so that none waits for one that failed."""
        return [RankWatch()] if self.world_size > 1 else []

    def teardown(self, stage: str) -> None:
        """Stops the sandbox workers."""
        self.environment.close()

    def configure_optimizers(self) -> Any:
        """Returns the optimizer and the schedule, which advances once an update."""
        optimizer = self.make_optimizer(self.trainable)
        total = self.trainer.max_steps if self.trainer.max_steps > 0 else None
        lr_factor(self.warmup_steps, self.lr_schedule, self.warmup_steps, total)  # fails now, not after the warm-up
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: lr_factor(step, self.lr_schedule, self.warmup_steps, total)
        )
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """As `nn.Module.state_dict`; with adapters, only those: the frozen weights are those of the start model."""
        state = super().state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        if self.lora is None:
            return state
        trained = {prefix + name for name, parameter in self.named_parameters() if parameter.requires_grad}
        return {name: value for name, value in state.items() if name in trained}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As `nn.Module.load_state_dict`; with adapters, `strict` asks for all of those and for nothing else."""
        if self.lora is not None and strict and (wrong := set(state_dict) ^ set(self.state_dict())):
            raise CheckpointError(
                f"the checkpoint does not hold the adapters of model.lora ({len(wrong)} differ, such as {min(wrong)}); "
                "resume with the settings that it was made with"
            )
        return super().load_state_dict(state_dict, strict=strict and self.lora is None, assign=assign)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the counters and what `rpl export` must know, as plain numbers and strings."""
        checkpoint["rpl"] = {
            "iteration": self.iteration,
            "seen": self._guard.seen,
            "void": self._guard.void,
            "start_model": self.start_model,
            "lora": None if self.lora is None else dataclasses.asdict(self.lora),
        }
        if self.lora is not None:
            checkpoint["rpl"]["frozen"] = self._frozen_sums()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores the counters.

        Raises:
            CheckpointError: The checkpoint's adapters were trained on another start model than this one.
        """
        counters = checkpoint["rpl"]
        if self.lora is not None and "frozen" in counters:
            check_frozen(self._frozen_sums(), counters, self.start_model)
        self.iteration = counters["iteration"]
        self._guard.seen, self._guard.void = counters["seen"], counters["void"]

    def _frozen_sums(self) -> dict[str, float]:
        sums = frozen_sums(self.model)
        return self.reduce_sums(sums) if is_sharded(self.model) else sums

    def export_policy(self, path: Path) -> None:
        """Writes the policy as a Hugging Face folder; all ranks take part, rank 0 writes."""
        model = full_model(self.model)
        if model is not None and self.global_rank == 0:
            export_policy(model, self.tokenizer, Path(path))
        if self.world_size > 1:
            self.trainer.strategy.barrier()

    # -- running -------------------------------------------------------------------------------------------------

    @property
    def executor(self) -> Executor:
        """What runs programs: that of the environment, or one that was set in its place."""
        return self._given_executor or self.environment.executor

    @executor.setter
    def executor(self, executor: Executor) -> None:
        self._given_executor = executor

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return 1 if self._trainer is None else self.trainer.world_size

    def token_logprobs(
        self, batch: MicroBatch, temperature: float = 1.0, entropy: Literal["none", "detached", "grad"] = "none"
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the trained tokens of a micro-batch; see `score_tokens`."""
        # Under bf16-mixed a sharded model has its own precision policy; other models are in the Trainer's autocast.
        enabled = torch.is_autocast_enabled(self.device.type) and not is_sharded(self.model)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled, cache_enabled=False):
            return score_tokens(
                self.model, batch, temperature=temperature, entropy=entropy, chunk_tokens=self.logprob_chunk_tokens
            )

    def roll_out(
        self, requests: Sequence[RolloutRequest], config: RolloutConfig, guard: InfraGuard
    ) -> tuple[list[Rollout], list[Rollout], dict[str, float]]:
        """Makes rollouts with the current weights. Collective; ranks may bring different numbers of requests.

        Args:
            requests: What to roll out; may be empty.
            config: Budgets and temperature.
            guard: Counts void rollouts.

        Returns:
            All rollouts in order, those of them that are not void, and the seconds of `generate_s`, `execute_s`,
            `wait_s` (see `RolloutTiming`; the first two overlap) and `sync_s`. `last_timing` has the tokens, too.

        Raises:
            RPLError: Infrastructure failed, here or on another rank: all ranks raise, so that none waits for one
                that is gone.
        """
        self.executor.connect(self.renderer.count_tokens)
        sampler = self._connected_sampler()
        failure, timing = None, RolloutTiming()
        rollouts: list[Rollout] = []
        valid: list[Rollout] = []
        before = self.executor.counts
        with gathered(self.model) if sampler.runs_model else nullcontext():
            try:
                rollouts = run_with_retries(
                    requests,
                    renderer=self.renderer,
                    sampler=sampler,
                    executor=self.executor,
                    config=config,
                    timing=timing,
                )
                valid = guard.check(rollouts)
            except RPLError as error:
                failure = error
        if self.reduce_max(float(failure is not None)):
            raise failure or RetrieverError("retrieval failed on another rank; see its message")
        self.last_rollouts, self.last_timing = rollouts, timing
        self.last_calls = self.executor.counts - before
        seconds = {"generate_s": timing.generate_s, "execute_s": timing.execute_s, "wait_s": timing.wait_s}
        return rollouts, valid, seconds | {"sync_s": sampler.last_sync_s}

    def _connected_sampler(self) -> Sampler:
        if self.sampler is None:
            from rpl.sampling.hf.sampler import HFSampler

            mixed = self._trainer is not None and self.trainer.precision == "bf16-mixed"
            self.sampler = HFSampler(dtype="bfloat16" if mixed else "float32")
        self.sampler.connect(self.model, self.tokenizer)
        return self.sampler

    # -- evaluation ----------------------------------------------------------------------------------------------

    def answer(self, questions: Sequence[Question]) -> list[Rollout]:
        """Answers questions greedily; one rollout a question, in order. Collective, like `roll_out`."""
        requests = [
            RolloutRequest(q, f"eval/{i}/{q.id}", 0, derive_seed(self.seed, "eval", q.id))
            for i, q in enumerate(questions)
        ]
        return self.roll_out(requests, self.eval_rollout, self._eval_guard)[0]

    def validation_step(self, batch: list[Question], batch_idx: int) -> None:
        """Answers and scores a list of questions, which may be empty."""
        self.scores.update(self.answer(batch), batch)

    def test_step(self, batch: list[Question], batch_idx: int) -> None:
        """As `validation_step`."""
        self.scores.update(self.answer(batch), batch)

    def predict_step(self, batch: list[Question], batch_idx: int) -> list[dict[str, Any]]:
        """Answers a list of questions and returns the rollouts as JSON-ready dictionaries.

        `from_dict(Rollout, value)` turns one back. (Lightning moves predictions about and refuses frozen records.)
        """
        return [to_dict(rollout) for rollout in self.answer(batch)]

    def on_validation_epoch_end(self) -> None:
        """Logs `val/…`."""
        self._log_scores("val")

    def on_test_epoch_end(self) -> None:
        """Logs `test/…`."""
        self._log_scores("test")

    def _log_scores(self, stage: str) -> None:
        for name, value in self.scores.compute().items():
            self.log(f"{stage}/{name}", value, prog_bar=name == "em", sync_dist=self.world_size > 1)
        self.scores.reset()

    # -- ranks ---------------------------------------------------------------------------------------------------

    def reduce_sums(self, values: dict[str, float]) -> dict[str, float]:
        """Adds up numbers over all ranks; every rank must bring the same names."""
        if self.world_size == 1:
            return values
        packed = torch.tensor([values[name] for name in sorted(values)], dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(packed)
        return dict(zip(sorted(values), packed.tolist(), strict=True))

    def reduce_max(self, value: float) -> float:
        """The largest of a number over all ranks."""
        if self.world_size == 1:
            return value
        packed = torch.tensor(value, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(packed, torch.distributed.ReduceOp.MAX)
        return float(packed)

    def gather_lists(self, values: list[float]) -> list[float]:
        """Concatenates the lists of all ranks, in rank order."""
        if self.world_size == 1:
            return values
        parts: list[list[float]] = [[] for _ in range(self.world_size)]
        torch.distributed.all_gather_object(parts, values)
        return [value for part in parts for value in part]
