"""Question files: one JSON object a line, checked line by line.

`{"id", "question", "answers": [...], "dataset", "split", "gold_docs": [...], "type", "hops"}`; the first three are
required, `answers` may be a single string, the others may be missing or null, and further fields are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rpl.core.errors import DataError
from rpl.core.files import read_jsonl
from rpl.core.records import Question
from rpl.retrieval.corpus.corpus import text_field


def read_questions(path: str | Path) -> list[Question]:
    """Reads a questions file (`.jsonl` or `.jsonl.gz`).

    Raises:
        DataError: The file is missing or damaged, or a line is wrong; the message names file, line and field.
    """
    return [question for _, question in read_numbered_questions(path)]


def read_numbered_questions(path: str | Path) -> list[tuple[int, Question]]:
    """Reads a questions file and returns each question with its line number, from 1; see `read_questions`."""
    path = Path(path)
    found: list[tuple[int, Question]] = []
    lines: dict[str, int] = {}
    for number, record in read_jsonl(path):
        question = read_question(record, f"{path}:{number}", lines)
        lines[question.id] = number
        found.append((number, question))
    if not found:
        raise DataError(f"{path}: there are no questions in this file")
    return found


def read_question(record: dict[str, Any], where: str, lines: Mapping[str, int]) -> Question:
    """Returns the question in one line of a questions file.

    Args:
        record: The line.
        where: File and line, for messages.
        lines: The line of each id that was read before.

    Raises:
        DataError: A field is wrong, or the id is not new; the message names file, line and field.
    """
    id_ = text_field(record, "id", where)
    if id_ in lines:
        raise DataError(f"{where}: id {id_!r} was already used in line {lines[id_]}; ids must be unique")
    hops = record.get("hops")
    hops = 0 if hops is None else hops
    if isinstance(hops, bool) or not isinstance(hops, int) or hops < 0:
        raise DataError(f"{where}: field 'hops' must be a whole number of at least 0, got {hops!r}")
    answers = _strings(record, "answers", where)
    if not answers:
        raise DataError(f"{where}: field 'answers' is missing or empty; give at least one accepted answer")
    return Question(
        id=id_,
        question=text_field(record, "question", where),
        answers=answers,
        gold_docs=tuple(dict.fromkeys(_strings(record, "gold_docs", where))),
        dataset=text_field(record, "dataset", where, allow_empty=True),
        split=text_field(record, "split", where, allow_empty=True),
        type=text_field(record, "type", where, allow_empty=True),
        hops=hops,
    )


def _strings(record: dict[str, Any], field: str, where: str) -> tuple[str, ...]:
    value = record.get(field)
    items = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise DataError(f"{where}: field {field!r} must be a string or a list of strings, got {type(value).__name__}")
    for item in items:
        if not isinstance(item, str):
            raise DataError(f"{where}: field {field!r} must hold strings, got {type(item).__name__} {item!r}")
        if not item.strip():
            raise DataError(f"{where}: field {field!r} holds an empty string")
    return tuple(items)
