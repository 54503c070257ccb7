"""Reads question files into train, val and test splits, and refuses splits that share a question.

`split` names where a row comes from (`train`; `val`, `dev` or `validation`; `test`; none means train). A field `fold`
(`train` or `test`), where a row has one, decides alone: rows of fold test are never trained on, and official dev rows
of fold train may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rpl.atlas import ATLAS_NAMES, materialise
from rpl.core.answers import normalize_answer
from rpl.core.errors import ConfigError, DataError
from rpl.core.files import digest, read_jsonl
from rpl.core.records import Question

Files = str | Sequence[str]

_SPLITS = {"": "train", "train": "train", "val": "val", "dev": "val", "validation": "val", "test": "test"}
_FOLDS = ("train", "test")
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class QuestionSplits:
    """Three lists of questions that share no id and no question text."""

    train: tuple[Question, ...]
    val: tuple[Question, ...]
    test: tuple[Question, ...]


def question_files(names: Files | None) -> list[Path]:
    """Turns `atlas`, `atlas-mini` or paths, alone or in a list, into paths; embedded sets are written if need be."""
    if names is None:
        return []
    listed = [names] if isinstance(names, str) else list(names)
    return [materialise(n) / "questions.jsonl" if n in ATLAS_NAMES else Path(n).expanduser() for n in listed]


def load_splits(
    questions: Files,
    *,
    val_questions: Files | None = None,
    test_questions: Files | None = None,
    test_split: Literal["test", "val"] = "test",
    val_fraction: float = 0.1,
) -> QuestionSplits:
    """Reads question files and splits them.

    Args:
        questions: Files whose rows say by `split` or `fold` where they belong.
        val_questions: Files whose rows are all for validation, whatever their split (rows of fold test are left out);
            val rows in `questions` are then an error.
        test_questions: Files whose rows are all for testing, likewise (rows of fold train are left out).
        test_split: `val` tests on the val rows, for data sets whose official test answers are secret; validation
            questions are then carved from train.
        val_fraction: Share of the train rows that is carved out for validation where there are no val rows, by a hash
            of the normalised question text, in [0, 1).

    Raises:
        ConfigError: `val_fraction` is out of its range.
        DataError: A file is wrong, or an id or a normalised question text is in two splits.
    """
    if not 0 <= val_fraction < 1:
        raise ConfigError(f"data.val_fraction must be in [0, 1), got {val_fraction}")
    parts: dict[str, list[Question]] = {"train": [], "val": [], "test": []}
    for path in question_files(questions):
        for row in _read(path):
            parts[row.split].append(row.question)
    if test_split == "val":
        if parts["test"]:
            raise DataError("data.test_split is 'val', but the files have rows of split test; leave it at 'test'")
        parts["test"], parts["val"] = parts["val"], []
    for name, files, fold in (("val", val_questions, "train"), ("test", test_questions, "test")):
        paths = question_files(files)
        if paths and parts[name]:
            raise DataError(f"data.{name}_questions is given, but data.questions has rows for {name} as well")
        for path in paths:
            parts[name] += [row.question for row in _read(path) if row.fold in (None, fold)]
    if not parts["val"]:
        parts["train"], parts["val"] = carve(parts["train"], val_fraction)
    refuse_overlap(parts)
    # Official names (dev) and folds give way to what a question is used for here, which is what harvests check.
    return QuestionSplits(*(tuple(replace(q, split=name) for q in parts[name]) for name in ("train", "val", "test")))


def carve(questions: Sequence[Question], fraction: float) -> tuple[list[Question], list[Question]]:
    """Splits questions by a hash of their normalised text, so that repeats of a text stay on one side.

    Returns:
        What is left for training, and about `fraction` of the questions; both in the given order.
    """
    left: list[Question] = []
    carved: list[Question] = []
    for question in questions:
        position = int(digest("carve", text_key(question.question)), 16) / 16**16
        (carved if position < fraction else left).append(question)
    return left, carved


def refuse_overlap(parts: dict[str, list[Question]]) -> None:
    """Checks that no id and no normalised question text is in two splits.

    Raises:
        DataError: Some are; the message names the first of them.
    """
    pairs = (("train", "val"), ("train", "test"), ("val", "test"))
    for first, second in pairs:
        ids = {q.id for q in parts[first]}
        shared = [repr(q.id) for q in parts[second] if q.id in ids]
        _refuse(shared, "question ids", first, second)
        texts = {text_key(q.question): q.id for q in parts[first]}
        shared = [
            f"{q.question!r} ({texts[key]!r} and {q.id!r})"
            for q in parts[second]
            if (key := text_key(q.question)) in texts
        ]
        _refuse(shared, "question texts", first, second)
    for name, questions in parts.items():
        seen: set[str] = set()
        repeated = [q.id for q in questions if q.id in seen or seen.add(q.id)]  # type: ignore[func-returns-value]
        if repeated:
            raise DataError(f"{name}: question ids repeat across files: {_some(map(repr, repeated))}")


def text_key(question: str) -> str:
    """The form in which question texts are compared: lower case, no punctuation, no articles."""
    return normalize_answer(question)


@dataclass(frozen=True, slots=True)
class _Row:
    split: str
    fold: str | None
    question: Question


def _read(path: Path) -> list[_Row]:
    from rpl.retrieval.corpus.questions import read_numbered_questions

    folds = {number: record.get("fold") for number, record in read_jsonl(path)}
    rows: list[_Row] = []
    for number, question in read_numbered_questions(path):
        fold = folds[number]
        if fold is not None and fold not in _FOLDS:
            raise DataError(f"{path}:{number}: field 'fold' must be one of {', '.join(_FOLDS)}, got {fold!r}")
        if question.split.lower() not in _SPLITS:
            allowed = ", ".join(name for name in _SPLITS if name)
            raise DataError(f"{path}:{number}: field 'split' must be one of {allowed}, got {question.split!r}")
        rows.append(_Row(fold or _SPLITS[question.split.lower()], fold, question))
    return rows


def _refuse(shared: list[str], what: str, first: str, second: str) -> None:
    if shared:
        raise DataError(f"{len(shared)} {what} are both in {first} and in {second}: {_some(shared)}")


def _some(items: Iterable[str]) -> str:
    listed = list(items)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
