"""Verified repairs as supervised data: the policy learns to write the program that would have worked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_only

from rpl.core.errors import ConfigError, DataError
from rpl.core.progress import say
from rpl.datamodules.base import RPLDataModule
from rpl.datamodules.examples import SFTExample, build_examples, read_repairs


class RepairedDataModule(RPLDataModule):
    """Yields lists of `SFTExample` for training; validates and tests on questions.

    Args:
        repairs: One or more files of repairs, as `rpl harvest` writes them. Those that were not verified are left out;
            those of validation or test questions are refused.
        questions: `atlas`, `atlas-mini`, or the questions files that the repairs come from.
        max_per_question: Most examples a question, those with the fewest edits first; `None` keeps all.
        readings: Whether evidence that the harvest recorded to be read (`harvest.reading_program`) is trained on too.
        **kwargs: Those of `RPLDataModule`; `val_fraction` must be what the repairs were harvested with, and `num_train`
            takes the examples of the first so many training questions.
    """

    def __init__(
        self,
        repairs: str | list[str],
        questions: str | list[str] = "atlas",
        max_per_question: int | None = 1,
        readings: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(questions, **kwargs)
        if max_per_question is not None and max_per_question < 1:
            raise ConfigError(f"data.max_per_question must be at least 1, got {max_per_question}")
        self.repairs = [repairs] if isinstance(repairs, str) else list(repairs)
        self.max_per_question = max_per_question
        self.readings = readings
        self._examples: list[SFTExample] | None = None

    def train_items(self) -> list[SFTExample]:
        """Returns the examples, in the order of the training questions.

        Raises:
            DataError: A repairs file is wrong, holds repairs of held-out questions, or holds no verified repair.
        """
        if self._examples is None:
            repairs = read_repairs(Path(path).expanduser() for path in self.repairs)
            examples, dropped = build_examples(repairs, self.splits, self.max_per_question, self.readings)
            _say_dropped(dropped)
            used = {question.id for question in self.train_questions_used}
            self._examples = [example for example in examples if example.question_id in used]
        if not self._examples:
            raise DataError(f"data.repairs ({', '.join(self.repairs)}) has no verified repair of a training question")
        return self._examples

    def keep(self, wanted: Callable[[SFTExample], bool]) -> None:
        """Drops the examples that are not wanted, and says how many; called before the first batch is drawn."""
        kept = list(filter(wanted, self.train_items()))
        _say_dropped(len(self.train_items()) - len(kept))
        self._examples = kept

    def setup(self, stage: str) -> None:
        """Reads and checks the files; the repairs only where training is about to start."""
        super().setup(stage)
        if stage == "fit":
            self.train_items()


@rank_zero_only
def _say_dropped(number: int) -> None:
    if number:
        say(
            f"data.repairs: {number} verified programs are left out: they, or the answer, hold a tag or a turn marker, "
            "and would not be read back from the transcript as they are"
        )
