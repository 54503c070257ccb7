"""The file that a harvest writes: one record a question, its settings and its summary beside it.

A harvest that is started again skips what the file holds; a file of other questions or settings is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rpl.core.errors import DataError
from rpl.core.files import append_jsonl, digest, read_appended, write_json
from rpl.core.records import Question, Repair, from_dict, to_dict
from rpl.repair.summary import summarise


class RepairsFile:
    """A repairs file, opened to be begun or continued.

    Attributes:
        done: The records that it holds, in the order of the questions.

    Args:
        path: The file, one record a line. Beside it stand `<stem>.settings.json` and in the end `<stem>.summary.json`.
        questions: What is harvested.
        settings: What must be equal for the file to be continued.

    Raises:
        DataError: A question is not of the train split, an id repeats, or the file holds other questions or was begun
            with other settings.
    """

    def __init__(self, path: Path, questions: Sequence[Question], settings: Mapping[str, Any]) -> None:
        _check_questions(questions)
        self.path = path
        self.done = [from_dict(Repair, record) for record in read_appended(path)]
        _check_done(questions, self.done, path)
        _check_settings(path, settings, questions, len(self.done))

    @property
    def attempted(self) -> int:
        """How many failures were searched so far."""
        return sum(record.attempted for record in self.done)

    def add(self, records: Sequence[Repair]) -> None:
        """Appends records, flushed to disk."""
        append_jsonl(self.path, [to_dict(record) for record in records])
        self.done += records

    def finish(self) -> dict[str, Any]:
        """Writes the summary, and returns it; see `summarise`."""
        summary = summarise(self.done)
        write_json(self.path.with_name(f"{self.path.stem}.summary.json"), summary)
        return summary


def _check_settings(out: Path, settings: Mapping[str, Any], questions: Sequence[Question], done: int) -> None:
    """Writes the settings beside a new file; refuses to continue a file that was begun with others, or by nobody knows.

    The questions are compared one by one, so that a harvest of more questions goes on with a file.
    """
    path = out.with_name(f"{out.stem}.settings.json")
    contents = [digest(json.dumps(to_dict(question), sort_keys=True)) for question in questions]
    ours = {**json.loads(json.dumps(settings)), "questions": contents}
    if done:
        remedy = "delete it to harvest again, or give another path"
        if not path.exists():
            raise DataError(
                f"{out}: its settings ({path.name}) are not beside it, so nobody can tell its policy; {remedy}"
            )
        before = json.loads(path.read_text(encoding="utf-8"))
        theirs = before.pop("questions", None)
        if theirs is None:
            raise DataError(f"{out}: was begun without digests of policy and questions; {remedy}")
        changed = [
            f"{key}: {before.get(key)!r} there, {ours.get(key)!r} here"
            for key in sorted({*before, *settings})
            if before.get(key) != ours.get(key)
        ]
        changed += ["the questions"] if theirs[:done] != contents[:done] else []
        if changed:
            raise DataError(f"{out}: was begun with other settings ({', '.join(changed)}); {remedy}")
    write_json(path, ours)


def _check_questions(questions: Sequence[Question]) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.split != "train":
            raise DataError(
                f"question {question.id!r} is of split {question.split!r}; only train questions may be harvested"
            )
        if question.id in seen:
            raise DataError(f"question id {question.id!r} occurs twice")
        seen.add(question.id)


def _check_done(questions: Sequence[Question], done: Sequence[Repair], out: Path) -> None:
    for number, record in enumerate(done, start=1):
        wanted = questions[number - 1].id if number <= len(questions) else None
        if record.question_id != wanted:
            raise DataError(
                f"{out}:{number}: holds question {record.question_id!r} where this harvest has {wanted!r}; the file is "
                "of another harvest: remove it or give another path"
            )
