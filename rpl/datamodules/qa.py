"""Questions to learn from by trial: the data of reinforcement learning and of evaluation."""

from __future__ import annotations

from rpl.core.records import Question
from rpl.datamodules.base import RPLDataModule


class QADataModule(RPLDataModule):
    """Yields lists of `Question`, for training too; see `RPLDataModule` for the arguments."""

    def train_items(self) -> tuple[Question, ...]:
        """Returns the training questions."""
        return self.train_questions_used
