"""The questions of reinforcement learning and of evaluation, as a data module."""

from __future__ import annotations

from rpl.core.records import Question
from rpl.datamodules.base import RPLDataModule


class QADataModule(RPLDataModule):
    """Yields lists of `Question`, for training too; see `RPLDataModule` for the arguments."""

    def train_items(self) -> tuple[Question, ...]:
        """Returns the training questions."""
        return self.train_questions_used
