"""Checks before a run begins how many of its questions can be answered from its corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rpl.core.errors import DataError
from rpl.core.progress import say
from rpl.core.records import Question
from rpl.environment.environment import Environment
from rpl.retrieval.corpus.coverage import GoldCoverage, gold_coverage


def check_gold(
    questions: Sequence[Question],
    environment: Environment,
    what: str = "questions",
    tell: Callable[[str], None] = say,
) -> GoldCoverage:
    """Compares the gold passages of questions with the corpus, and tells the share of questions that it can answer.

    Args:
        questions: With gold ids or without; ids must be unique.
        environment: Its library has the corpus; it is opened.
        what: How messages call the questions.
        tell: Receives the line with the share; nothing is told where no question names a gold passage.

    Raises:
        DataError: The share is below `environment.config.min_answerable`: the questions are of another corpus.
        RetrieverError: A server that should know its passages did not answer.
    """
    coverage = gold_coverage(questions, environment.library)
    least = environment.config.min_answerable
    if coverage.share is not None and coverage.share < least:
        question, ids = next(iter(coverage.missing.items()))
        raise DataError(
            f"{what}: {coverage}; the first is {ids[0]!r} of question {question!r}. Name the corpus that belongs to "
            "the questions in environment.library.corpus, or, if this is meant, lower environment.min_answerable "
            f"({least})"
        )
    if coverage.with_gold:
        tell(f"{what}: {coverage}")
    return coverage
