"""What all modules share: the policy (built, warm-started, sharded, exported), its environment, and evaluation."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.cli import OptimizerCallable

from rpl.core.errors import CheckpointError, ConfigError
from rpl.core.progress import say
from rpl.core.records import Question, Rollout, to_dict
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.environment.faults import VoidRate
from rpl.environment.gold import check_gold
from rpl.modules.learning_rate import lr_factor
from rpl.modules.parts.collectives import Ranks
from rpl.modules.parts.evaluator import Evaluator
from rpl.modules.parts.packer import Packer
from rpl.modules.parts.policy_model import PolicyModel
from rpl.modules.parts.rollout_engine import RolloutEngine, Rollouts
from rpl.modules.ranks import RankWatch
from rpl.policy.bundle import Contract
from rpl.policy.limits import check_context, positions
from rpl.policy.weights.lora import LoRAConfig
from rpl.rollouts.requests import RolloutConfig, RolloutRequest
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
        prompt_style: `compact` (about thirty tokens, for small models) or `documented` (the language in full). `None`
            takes what the `rpl.json` of the start's folder says, and `compact` where there is none.
        thinking: Whether the policy may write plain text before a program or an answer. `None` likewise, else `True`.
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
        prompt_style: Literal["compact", "documented"] | None = None,
        thinking: bool | None = None,
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
        self.policy_model = PolicyModel(
            init_from or policy, lora, prompt_style, thinking, activation_checkpointing, seed
        )
        """The model with its tokenizer and renderer."""
        self.engine = RolloutEngine(Environment(environment), sampler)
        """What makes rollouts."""
        self.rollout = rollout
        self.evaluator = Evaluator(
            rollout, eval_max_turns, eval_max_new_tokens, max_void_rate if score_void else 0.0, seed
        )
        """Greedy answers and their scores."""
        self.packer = Packer(packing, tokens_per_micro_batch)
        self.make_optimizer = optimizer
        self.lr_schedule, self.warmup_steps, self.gradient_clip = lr_schedule, warmup_steps, gradient_clip
        self.logprob_chunk_tokens, self.seed = logprob_chunk_tokens, seed
        self.model: Any = None
        """`policy_model.model`, registered as a submodule."""
        self.iteration = 0
        """Iterations (training steps) that were completed, over all resumes."""
        self.guard = VoidRate(max_void_rate)
        """Counts void training rollouts."""

    @abstractmethod
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any] | None:
        """Runs one iteration."""

    # -- building ------------------------------------------------------------------------------------------------

    def configure_model(self) -> None:
        """Loads the policy, puts adapters in if asked to, and shards it where the strategy brings a device mesh."""
        if self.model is not None:
            return
        self.policy_model.build(self.device_mesh, self.sharded_dtype)
        self.model = self.policy_model.model
        check_context(self.rollout.max_context_tokens, positions(self.model), type(self.model).__name__)
        self.engine.environment.connect(self.policy_model.renderer.count_tokens)

    @property
    def sharded_dtype(self) -> torch.dtype | None:
        """What a sharded model computes in; `None` stands for the type of its weights."""
        return torch.bfloat16 if self._trainer is not None and self.trainer.precision == "bf16-mixed" else None

    def setup(self, stage: str) -> None:
        """Checks the settings that only the Trainer knows.

        Raises:
            ConfigError: The precision is not supported.
            DataError: The corpus has the gold passages of (nearly) none of the questions.
        """
        if self.trainer.precision not in PRECISIONS:
            raise ConfigError(f"trainer.precision must be one of {', '.join(PRECISIONS)}; got {self.trainer.precision}")
        self.engine.dtype = "bfloat16" if self.trainer.precision == "bf16-mixed" else "float32"
        self._check_gold(stage)

    def _check_gold(self, stage: str) -> None:
        """Compares the questions that this stage uses with the corpus, before anything is computed."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if not hasattr(data, "train_questions_used"):
            return
        used = {
            "training questions": (data.train_questions_used, stage == "fit"),
            "validation questions": (data.val_questions_used, stage in ("fit", "validate")),
            "test questions": (data.test_questions_used, stage in ("test", "predict")),
        }
        for what, (questions, is_used) in used.items():
            if is_used:
                check_gold(questions, self.engine.environment, what, say if self.global_rank == 0 else lambda _: None)

    def configure_callbacks(self) -> list[Callback]:
        """Several processes watch one another, so that none waits for one that failed."""
        return [RankWatch()] if self.world_size > 1 else []

    def teardown(self, stage: str) -> None:
        """Stops the sandbox workers."""
        self.engine.environment.close()

    def configure_optimizers(self) -> Any:
        """Returns the optimizer and the schedule, which advances once an update."""
        optimizer = self.make_optimizer(self.policy_model.trainable)
        total = self.trainer.max_steps if self.trainer.max_steps > 0 else None
        factor = partial(lr_factor, schedule=self.lr_schedule, warmup_steps=self.warmup_steps, total_steps=total)
        factor(self.warmup_steps)  # fails now, not after the warm-up
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, factor)}

    # -- checkpoints and export ----------------------------------------------------------------------------------

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """As `nn.Module.state_dict`; with adapters, only those: the frozen weights are those of the start model."""
        state = super().state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        if self.policy_model.lora is None:
            return state
        trained = {prefix + name for name, parameter in self.named_parameters() if parameter.requires_grad}
        return {name: value for name, value in state.items() if name in trained}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As `nn.Module.load_state_dict`; with adapters, `strict` asks for all of those and for nothing else."""
        whole = self.policy_model.lora is None
        if not whole and strict and (wrong := set(state_dict) ^ set(self.state_dict())):
            raise CheckpointError(
                f"the checkpoint does not hold the adapters of model.lora ({len(wrong)} differ, such as {min(wrong)}); "
                "resume with the settings that it was made with"
            )
        return super().load_state_dict(state_dict, strict=strict and whole, assign=assign)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the counters and what `rpl export` must know, as plain numbers and strings."""
        counters = {"iteration": self.iteration, "seen": self.guard.seen, "void": self.guard.void}
        entry = self.policy_model.checkpoint_entry(self.ranks) | {"contract": dataclasses.asdict(self.contract)}
        checkpoint["rpl"] = counters | entry

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores the counters.

        Raises:
            CheckpointError: The checkpoint's adapters were trained on another start model than this one.
        """
        entry = checkpoint["rpl"]
        self.policy_model.check_checkpoint(entry, self.ranks)
        self.iteration = entry["iteration"]
        self.guard.seen, self.guard.void = entry["seen"], entry["void"]

    def export_policy(self, path: Path) -> None:
        """Writes the policy as a Hugging Face folder; all ranks take part, rank 0 writes."""
        self.policy_model.export(Path(path), self.ranks, self.contract)

    @property
    def contract(self) -> Contract:
        """The contract that `rpl.json` of an exported folder holds: how the policy is trained to be asked."""
        layout, environment = self.policy_model.layout, self.engine.environment
        return Contract(
            prompt_style=layout.prompt_style,
            thinking=layout.thinking,
            template=self.policy_model.renderer.template.digest,
            limits={
                "max_turns": self.rollout.max_turns,
                "max_new_tokens": self.rollout.max_new_tokens,
                "max_context_tokens": self.rollout.max_context_tokens,
                "printed_tokens": environment.config.limits.printed_tokens,
            },
            primitives=list(environment.primitives),
        )

    # -- running -------------------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return 1 if self._trainer is None else self.trainer.world_size

    @property
    def ranks(self) -> Ranks:
        """The processes of the run."""
        return Ranks(self.global_rank, self.world_size, self.device)

    def roll_out(self, requests: Sequence[RolloutRequest], config: RolloutConfig, guard: VoidRate) -> Rollouts:
        """Makes rollouts with the current weights; collective, see `RolloutEngine.run`."""
        return self.engine.run(requests, config, self.policy_model, guard, self.ranks)

    def answer(self, questions: Sequence[Question]) -> list[Rollout]:
        """Answers questions greedily; one rollout a question, in order. Collective, like `roll_out`."""
        return self.evaluator.answer(questions, self.roll_out)

    def validation_step(self, batch: list[Question], batch_idx: int) -> None:
        """Answers and scores a list of questions, which may be empty."""
        self.evaluator.score(batch, self.roll_out)

    def test_step(self, batch: list[Question], batch_idx: int) -> None:
        """As `validation_step`."""
        self.evaluator.score(batch, self.roll_out)

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
        for name, value in self.evaluator.scores().items():
            self.log(f"{stage}/{name}", value, prog_bar=name == "em", sync_dist=self.world_size > 1)
