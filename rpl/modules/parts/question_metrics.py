"""torchmetrics around the text and evidence scores: sums over questions, all on the 0 to 1 scale.

Every metric keeps sums and counts, so that unevenly sharded questions reduce to the mean over all of them. A metric
that has counted no question computes NaN: the mean of nothing is not a score. It does not warn either, because a
process that got none of the questions is a normal state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from rpl.core.answers import exact_match, token_f1


class MeanPerQuestion(Metric):
    """Mean over questions of a number that is already at hand (primitive calls, printed tokens, a reward term)."""

    is_differentiable = False
    higher_is_better: bool | None = None
    full_state_update = False

    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def update_called(self) -> bool:
        """Always true: no question is a state like any other, see the module's docstring."""
        return True

    def update(self, values: Sequence[float]) -> None:
        """Adds one finite number a question; the sequence may be empty."""
        self.total += float(sum(values))
        self.count += len(values)

    def compute(self) -> Tensor:
        """Returns the mean over all questions so far, shape (), or NaN where there was none."""
        return (self.total / self.count).float()


class _AnswerScore(MeanPerQuestion):
    higher_is_better = True

    def update(self, preds: Sequence[str | None], answers: Sequence[Sequence[str]]) -> None:  # type: ignore[override]
        """Adds questions.

        Args:
            preds: Predicted answers, one a question; `None` (no answer was given) scores 0.
            answers: All accepted answers of each question, none of them empty.

        Raises:
            ValueError: The lengths differ, or a question has no accepted answers.
        """
        super().update([self._score(pred, accepted) for pred, accepted in zip(preds, answers, strict=True)])

    @staticmethod
    def _score(pred: str | None, answers: Sequence[str]) -> float:
        raise NotImplementedError


class ExactMatch(_AnswerScore):
    """Share of questions whose prediction equals an accepted answer; see `rpl.core.answers.exact_match`."""

    _score = staticmethod(exact_match)


class TokenF1(_AnswerScore):
    """Mean F1 of the words of the prediction and of the best accepted answer; see `rpl.core.answers.token_f1`."""

    _score = staticmethod(token_f1)


class _EvidenceScore(MeanPerQuestion):
    higher_is_better = True

    without_gold: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("without_gold", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def num_without_gold(self) -> int:
        """How many questions were skipped because no gold evidence is known."""
        return int(self.without_gold)

    def update(self, printed_ids: Sequence[Collection[str]], gold_ids: Sequence[Collection[str]]) -> None:  # type: ignore[override]
        """Adds questions; those without gold are counted in `num_without_gold` and nowhere else.

        Args:
            printed_ids: Ids of the passages that reached the context, one collection a question; repeats count once.
            gold_ids: Ids of the passages that are needed, one collection a question.

        Raises:
            ValueError: The lengths differ.
        """
        pairs = [(set(printed), set(gold)) for printed, gold in zip(printed_ids, gold_ids, strict=True)]
        super().update([self._score(printed, gold) for printed, gold in pairs if gold])
        self.without_gold += sum(not gold for _, gold in pairs)

    @staticmethod
    def _score(printed: set[str], gold: set[str]) -> float:
        raise NotImplementedError


class EvidencePrecision(_EvidenceScore):
    """Mean share of the printed passages that are gold; 0 where nothing was printed."""

    @staticmethod
    def _score(printed: set[str], gold: set[str]) -> float:
        return len(printed & gold) / len(printed) if printed else 0.0


class EvidenceRecall(_EvidenceScore):
    """Mean share of the gold passages that were printed."""

    @staticmethod
    def _score(printed: set[str], gold: set[str]) -> float:
        return len(printed & gold) / len(gold)


class EvidenceF1(_EvidenceScore):
    """Mean harmonic mean of a question's evidence precision and recall."""

    @staticmethod
    def _score(printed: set[str], gold: set[str]) -> float:
        return 2 * len(printed & gold) / (len(printed) + len(gold))


class AllGold(_EvidenceScore):
    """Share of questions whose gold passages were all printed."""

    @staticmethod
    def _score(printed: set[str], gold: set[str]) -> float:
        return float(gold <= printed)
