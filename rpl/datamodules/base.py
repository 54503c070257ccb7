"""What all data modules share: splits read once, deterministic loaders, and the right share for each process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule

from rpl.core.errors import ConfigError, DataError
from rpl.core.records import Question
from rpl.datamodules.loader import EvalLoader, TrainLoader
from rpl.datamodules.readers import Files, QuestionSplits, load_splits, question_files


class RPLDataModule(LightningDataModule, ABC):
    """Training items of a subclass's kind; validation and test questions as lists of `Question`.

    Args:
        questions: `atlas`, `atlas-mini`, or one or more questions files. The field `split` (train; val, dev or
            validation; test; none means train) or, where present, `fold` says where a row belongs.
        val_questions: Files whose rows are all for validation, if they are apart.
        test_questions: Files whose rows are all for testing, if they are apart.
        test_split: `val` tests on the val (dev) rows; validation questions are then carved from train.
        val_fraction: Share of train that is carved out for validation where there are no val rows, by a hash of the
            question text.
        batch_size: Training items an iteration and process.
        eval_batch_size: Validation or test questions a batch and process.
        num_train: Use the first so many training questions; `None` uses all.
        num_val: Use the first so many validation questions.
        num_test: Use the first so many test questions.
        seed: Names the order of the training items.
    """

    def __init__(
        self,
        questions: str | list[str] = "atlas",
        val_questions: str | list[str] | None = None,
        test_questions: str | list[str] | None = None,
        test_split: Literal["test", "val"] = "test",
        val_fraction: float = 0.1,
        batch_size: int = 8,
        eval_batch_size: int = 16,
        num_train: int | None = None,
        num_val: int | None = None,
        num_test: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        sizes = {"batch_size": batch_size, "eval_batch_size": eval_batch_size}
        limits = {"num_train": num_train, "num_val": num_val, "num_test": num_test}
        for key, value in (sizes | limits).items():
            if value is not None and value < 1:
                raise ConfigError(f"data.{key} must be at least 1, got {value}")
        self.questions: Files = questions
        self.val_questions: Files | None = val_questions
        self.test_questions: Files | None = test_questions
        self.test_split = test_split
        self.val_fraction = val_fraction
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.num_train = num_train
        self.num_val = num_val
        self.num_test = num_test
        self.seed = seed
        self._splits: QuestionSplits | None = None

    @property
    def splits(self) -> QuestionSplits:
        """All questions by split, before any limit; read on first use.

        Raises:
            DataError: A file is wrong, or an id or a question text is in two splits.
        """
        if self._splits is None:
            self._splits = load_splits(
                self.questions,
                val_questions=self.val_questions,
                test_questions=self.test_questions,
                test_split=self.test_split,
                val_fraction=self.val_fraction,
            )
        return self._splits

    @property
    def train_questions_used(self) -> tuple[Question, ...]:
        """The questions that training may draw on."""
        return self.splits.train[: self.num_train]

    @property
    def val_questions_used(self) -> tuple[Question, ...]:
        """The questions that are validated on."""
        return self.splits.val[: self.num_val]

    @property
    def test_questions_used(self) -> tuple[Question, ...]:
        """The questions that are tested on."""
        return self.splits.test[: self.num_test]

    @abstractmethod
    def train_items(self) -> Sequence[Any]:
        """Returns the training items, in a fixed order."""

    def prepare_data(self) -> None:
        """Writes the embedded data sets, on one process a node."""
        for files in (self.questions, self.val_questions, self.test_questions):
            question_files(files)

    def setup(self, stage: str) -> None:
        """Reads and checks the files."""
        _ = self.splits

    def train_dataloader(self) -> TrainLoader[Any]:
        """Yields shuffled lists of training items; equally many on every process.

        Raises:
            DataError: There is nothing to train on.
        """
        items = self.train_items()
        if not items:
            raise DataError(f"data.questions ({self.questions}) has nothing to train on")
        rank, world_size = self._share()
        return TrainLoader(items, self.batch_size, seed=self.seed, rank=rank, world_size=world_size)

    def val_dataloader(self) -> EvalLoader[Question]:
        """Yields lists of validation questions; each question once over all processes, some lists may be empty.

        Raises:
            DataError: There are no validation questions.
        """
        return self._eval_loader(self.val_questions_used, "validation", "data.val_questions or data.val_fraction")

    def test_dataloader(self) -> EvalLoader[Question]:
        """Yields lists of test questions; each question once over all processes, some lists may be empty.

        Raises:
            DataError: There are no test questions.
        """
        return self._eval_loader(self.test_questions_used, "test", "data.test_questions or data.test_split")

    def predict_dataloader(self) -> EvalLoader[Question]:
        """Yields the test questions; see `test_dataloader`."""
        return self.test_dataloader()

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Returns the batch as it is: a list of records holds no tensors, and Lightning refuses frozen ones."""
        return batch

    def _eval_loader(self, questions: Sequence[Question], what: str, keys: str) -> EvalLoader[Question]:
        if not questions:
            raise DataError(f"data.questions ({self.questions}) has no {what} questions; set {keys}")
        rank, world_size = self._share()
        return EvalLoader(questions, self.eval_batch_size, rank=rank, world_size=world_size)

    def _share(self) -> tuple[int, int]:
        """Returns this process's number and the number of processes among those that get different data."""
        if self.trainer is None or self.trainer.world_size == 1:
            return 0, 1
        share = getattr(self.trainer.strategy, "distributed_sampler_kwargs", None)
        if share is None:
            return self.trainer.global_rank, self.trainer.world_size
        return share["rank"], share["num_replicas"]
