"""Supervised fine-tuning on transcripts: the loss is on the policy's tokens, and observations are masked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from rpl.core.errors import DataError
from rpl.modules.batches.micro_batches import MicroBatch, TrainingSequence
from rpl.modules.losses import LossOutput, cross_entropy_loss
from rpl.modules.training_module import TrainingModule


class Example(Protocol):
    """What a training item must offer."""

    @property
    def question(self) -> str:
        """The question text."""

    @property
    def question_id(self) -> str:
        """Its id, for messages."""

    @property
    def steps(self) -> Sequence[tuple[str, str]]:
        """Pairs of program and observation."""

    @property
    def answer(self) -> str:
        """The answer to be written at the end."""

    @property
    def imitate(self) -> bool:
        """Whether the programs are trained on; otherwise the one program is given, and only its result is read."""


class SFTModule(TrainingModule):
    """Trains the policy to write given programs and answers; a training batch is a list of examples.

    One training step is one optimizer step on the whole batch: the loss is the mean over its trained tokens, over all
    ranks. Validation is the same as in RL: the policy answers questions on its own.

    Args:
        **kwargs: Those of `PolicyModule`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def on_fit_start(self) -> None:
        """Leaves out the examples that this tokenizer and chat template do not give back as they were written."""
        super().on_fit_start()
        keep = getattr(getattr(self.trainer, "datamodule", None), "keep", None)
        if keep is not None:
            keep(self.is_writable)

    def is_writable(self, example: Example) -> bool:
        """Returns whether the programs and the answer of an example are read back from its transcript."""
        programs = all(self.policy_model.renderer.writable(program) for program, _ in example.steps)
        return programs and self.policy_model.renderer.answer_writable(example.answer)

    def training_step(self, batch: list[Example], batch_idx: int) -> None:
        """Makes one update from a list of examples."""
        start = time.perf_counter()
        sequences = [self.sequence(example) for example in batch]
        tokens = float(sum(len(s.token_ids) for s in sequences))
        counts = self.ranks.sums({"trained": float(sum(s.num_trained for s in sequences)), "tokens": tokens})
        normaliser = max(1.0, counts["trained"])

        def loss(micro_batch: MicroBatch, _: None) -> LossOutput:
            logprobs, _entropies = self.token_logprobs(micro_batch)
            return cross_entropy_loss(logprobs, normaliser)

        sums = self.update([(micro_batch, None) for micro_batch in self.pack(sequences)], loss).sums
        self.iteration += 1
        seconds = self.ranks.largest(time.perf_counter() - start)
        log = {
            "train/grad_norm": sums.get("grad_norm", 0.0),
            "train/tokens": counts["trained"],
            "train/lr": self.learning_rate,
            "time/update_s": seconds,
            "time/tokens_per_s": counts["tokens"] / seconds,
        }
        self.log_dict(log, batch_size=max(1, len(batch)))
        self.log("train/loss", sums.get("loss", 0.0), prog_bar=True, batch_size=max(1, len(batch)))

    def sequence(self, example: Example) -> TrainingSequence:
        """Renders an example exactly as a rollout that had gone this way would read.

        Raises:
            DataError: The transcript is longer than the policy's context.
        """
        ids, mask = self.policy_model.renderer.transcript(example.question, example.steps, example.answer)
        limit: Any = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and len(ids) > limit:
            raise DataError(
                f"the transcript of question {example.question_id!r} has {len(ids)} tokens; the policy reads {limit}"
            )
        if not example.imitate:
            program, observation = example.steps[-1]
            given = len(self.policy_model.renderer.prefilled_ids(example.question, program, observation))
            mask = [trained and i >= given for i, trained in enumerate(mask)]
        return TrainingSequence(tuple(ids), tuple(mask))
