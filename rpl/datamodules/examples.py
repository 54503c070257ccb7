"""Supervised examples from repairs, and the checks that keep held-out questions out of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rpl.core.errors import DataError
from rpl.core.files import read_jsonl
from rpl.core.records import Repair, from_dict
from rpl.core.tags import answer_writable, writable
from rpl.datamodules.readers import QuestionSplits

VERIFIED = ("repaired", "already_verified")
"""Verdicts of repairs whose program was executed and printed the gold evidence."""


@dataclass(frozen=True, slots=True)
class SFTExample:
    """What the policy should have written, and what the environment answered."""

    question: str
    question_id: str
    steps: tuple[tuple[str, str], ...]
    """Pairs of program and observation, in order."""
    answer: str
    """The first accepted answer that a turn can hold."""
    imitate: bool = True
    """Whether the programs are to be learnt, or the answer alone: how to read what they printed."""


@dataclass(frozen=True, slots=True)
class LocatedRepair:
    """A repair and the place it was read from, for messages."""

    where: str
    repair: Repair


def read_repairs(paths: Iterable[Path]) -> list[LocatedRepair]:
    """Reads repairs files, one record a line.

    Raises:
        DataError: A file is missing, or a line is not a repair; the message names file, line and field.
    """
    found: list[LocatedRepair] = []
    for path in paths:
        for number, record in read_jsonl(path):
            where = f"{path}:{number}"
            try:
                found.append(LocatedRepair(where, from_dict(Repair, record)))
            except KeyError as error:
                raise DataError(f"{where}: not a repair: field {error} is missing") from error
            except (TypeError, AttributeError) as error:
                raise DataError(f"{where}: not a repair: {error}") from error
    return found


def build_examples(
    repairs: Sequence[LocatedRepair], splits: QuestionSplits, max_per_question: int | None, readings: bool = True
) -> tuple[list[SFTExample], int]:
    """Turns verified repairs into examples; what was not verified is left out.

    Args:
        repairs: As read.
        splits: Where each question belongs.
        max_per_question: Most examples a question, those with the fewest edits first; `None` keeps all. A program is
            never kept twice for one question.
        readings: Whether evidence that was recorded to be read gives one more example a question.

    Returns:
        Examples in the order of the training questions, whatever the order of the files; and how many programs were
        left out because a transcript cannot hold them or any accepted answer (see `rpl.core.tags`).

    Raises:
        DataError: A repair belongs to a validation or test question or to none at all, or a verified one has no
            program or no clean trace.
    """
    held_out = {q.id: name for name, part in (("val", splits.val), ("test", splits.test)) for q in part}
    known = {q.id for q in splits.train}
    by_question: dict[str, list[Repair]] = {}
    for located in repairs:
        repair, where = located.repair, located.where
        # Also repairs that failed are refused: the file was harvested on questions it must not have seen.
        if repair.question_id in held_out:
            split = held_out[repair.question_id]
            raise DataError(f"{where}: question {repair.question_id!r} is in split {split}: it must not be trained on")
        if repair.question_id not in known:
            raise DataError(f"{where}: question {repair.question_id!r} is not in data.questions")
        if repair.verdict in VERIFIED:
            _check(repair, where)
            by_question.setdefault(repair.question_id, []).append(repair)
    examples: list[SFTExample] = []
    dropped = 0
    for question in splits.train:
        ranked = sorted(by_question.get(question.id, ()), key=lambda r: (r.edit_distance, r.child or "", r.seed))
        programs = {r.child: (r.child, r.trace.observation) for r in ranked if r.child is not None and r.trace}
        recorded = [r.reading for r in by_question.get(question.id, ()) if r.reading is not None]
        read = [(r.program, r.observation) for r in recorded[:1] if readings]
        answer = next(filter(answer_writable, question.answers), None)
        held = [step for step in programs.values() if writable(step[0]) and answer is not None]
        held_read = [step for step in read if writable(step[0]) and answer is not None]
        dropped += len(programs) + len(read) - len(held) - len(held_read)
        chosen = [(step, True) for step in held[:max_per_question]] + [(step, False) for step in held_read]
        examples += [
            SFTExample(question.question, question.id, (step,), answer or "", imitate) for step, imitate in chosen
        ]
    return examples, dropped


def _check(repair: Repair, where: str) -> None:
    if repair.child is None:
        raise DataError(f"{where}: field 'child' is null, but the verdict is {repair.verdict!r}")
    if repair.trace is None:
        raise DataError(f"{where}: field 'trace' is null, but the verdict is {repair.verdict!r}")
    if repair.trace.error is not None or repair.trace.infra_error is not None:
        raise DataError(f"{where}: the trace has an error, but the verdict is {repair.verdict!r}")
