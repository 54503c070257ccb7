"""Checks a user's corpus and questions, and reports every fault and every oddity in one reading.

Passages are not kept, so that a corpus of any size can be checked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rpl.core.errors import DataError
from rpl.core.files import digest, read_jsonl
from rpl.core.records import Question
from rpl.core.units import format_table
from rpl.retrieval.corpus.budget import PrintBudget
from rpl.retrieval.corpus.corpus import repeated_id, text_field, title_and_text
from rpl.retrieval.corpus.coverage import GoldCoverage, gold_coverage
from rpl.retrieval.corpus.questions import read_question
from rpl.retrieval.corpus.store import open_store

SHOWN = 20
"""How many lines about one kind of fault, and how many ids, are shown."""

CORPUS_FOLDER = "corpus"

_MARKUP = re.compile(r"</?(?:a|br|div|h[1-6]|li|p|script|span|style|table|td|tr|ul)\b[^<>]*>", re.IGNORECASE)
_USED = frozenset({"id", "title", "text", "contents"})


@dataclass
class CorpusCheck:
    """What is in a corpus. Whatever can be asked for the ids of missing passages can be asked of it."""

    source: str
    ids: dict[str, int] = field(default_factory=dict)
    """Line (or place) of each id, from 1."""
    faults: list[str] = field(default_factory=list)
    """Rows that cannot be used, each by file, line and field."""
    untitled: int = 0
    """Passages without a title: no links lead to them."""
    copies: list[str] = field(default_factory=list)
    """Ids of passages with the title and text of an earlier one: they take its places in results."""
    markup: list[str] = field(default_factory=list)
    """Ids of passages with tags of HTML, which are searched as words."""
    too_long: dict[str, None] = field(default_factory=dict)
    """Ids of passages that exceed the print budget."""
    unused: Counter[str] = field(default_factory=Counter)
    """Fields that are not read, with the number of rows that have them."""

    def missing(self, ids: Iterable[str]) -> frozenset[str]:
        """Returns those ids that no passage has."""
        return frozenset(id_ for id_ in ids if id_ not in self.ids)

    def table(self, budget: PrintBudget) -> str:
        """Returns the figures as lines of text."""
        rows: list[tuple[str, int, Sequence[str]]] = [
            ("passages", len(self.ids), ()),
            ("rows that cannot be used", len(self.faults), ()),
            ("without a title", self.untitled, ()),
            ("copies of an earlier passage", len(self.copies), self.copies),
            ("with tags of HTML", len(self.markup), self.markup),
            (f"above the print budget of {budget.tokens} tokens", len(self.too_long), list(self.too_long)),
        ]
        rows += [(f"with the field {name!r}, which is not read", n, ()) for name, n in self.unused.most_common(SHOWN)]
        return f"{self.source}\n{_figures(rows)}"


@dataclass
class QuestionsCheck:
    """What is in a file of questions, and how much of it a corpus can answer."""

    source: str
    rows: list[tuple[int, Question]] = field(default_factory=list)
    """Line of each question, from 1."""
    faults: list[str] = field(default_factory=list)
    """Rows that cannot be used, each by file, line and field."""

    @property
    def questions(self) -> list[Question]:
        """The questions without their lines."""
        return [question for _, question in self.rows]

    @property
    def splits(self) -> dict[str, int]:
        """How many questions each split has."""
        return dict(Counter(question.split or "(no split)" for question in self.questions))

    def coverage(self, corpus: CorpusCheck) -> GoldCoverage:
        """Compares their gold ids with the ids of a corpus."""
        return gold_coverage(self.questions, corpus)

    def gold_faults(self, corpus: CorpusCheck) -> list[str]:
        """Returns a line of text for each gold id that the corpus lacks."""
        missing = self.coverage(corpus).missing
        return [
            f"{self.source}:{number}: gold id {id_!r} of question {question.id!r} is not in the corpus"
            for number, question in self.rows
            for id_ in missing.get(question.id, ())
        ]

    def table(self, corpus: CorpusCheck, budget: PrintBudget) -> str:
        """Returns the figures as lines of text."""
        found = self.coverage(corpus)
        unprintable = [q.id for q in self.questions if any(id_ in corpus.too_long for id_ in q.gold_docs)]
        rows: list[tuple[str, int, Sequence[str]]] = [
            ("questions", len(self.rows), ()),
            ("rows that cannot be used", len(self.faults), ()),
            *((f"in split {name}" if name[0] != "(" else "without a split", n, ()) for name, n in self.splits.items()),
            ("without gold", found.without_gold, ()),
            ("with gold that the corpus lacks", len(found.missing), list(found.missing)),
            (f"with gold above the print budget of {budget.tokens} tokens", len(unprintable), unprintable),
        ]
        return f"{self.source}\n{_figures(rows)}{found}\n"


def check_corpus(path: Path, budget: PrintBudget) -> CorpusCheck:
    """Reads a corpus file, or the corpus of an index folder, to its end, whatever is wrong with single rows.

    Args:
        path: `.jsonl` or `.jsonl.gz`, or an index folder.
        budget: What may be printed.

    Raises:
        DataError: There is no such file, or it is damaged.
    """
    found = CorpusCheck(str(path))
    seen: set[str] = set()
    if (path / CORPUS_FOLDER).is_dir():
        for number, passage in enumerate(open_store(path / CORPUS_FOLDER), start=1):
            _note(found, seen, number, passage.id, passage.title, passage.text, budget)
        return found
    for number, record in read_jsonl(path, lambda error: found.faults.append(str(error))):
        where = f"{path}:{number}"
        try:
            id_ = text_field(record, "id", where)
            title, text = title_and_text(record, where)
            if id_ in found.ids:
                raise repeated_id(path, id_, found.ids[id_], number)
        except DataError as error:
            found.faults.append(str(error))
            continue
        found.unused.update(record.keys() - _USED)
        _note(found, seen, number, id_, title, text, budget)
    if not found.ids and not found.faults:
        found.faults.append(f"{path}: there are no passages in this file")
    return found


def check_questions(path: Path) -> QuestionsCheck:
    """Reads a file of questions to its end, whatever is wrong with single rows.

    Raises:
        DataError: There is no such file, or it is damaged.
    """
    found = QuestionsCheck(str(path))
    lines: dict[str, int] = {}
    for number, record in read_jsonl(path, lambda error: found.faults.append(str(error))):
        try:
            question = read_question(record, f"{path}:{number}", lines)
        except DataError as error:
            found.faults.append(str(error))
            continue
        lines[question.id] = number
        found.rows.append((number, question))
    if not found.rows and not found.faults:
        found.faults.append(f"{path}: there are no questions in this file")
    return found


def shown(lines: Sequence[str]) -> str:
    """Returns the first lines of many, and how many more there are."""
    more = [f"… and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return "".join(f"  {line}\n" for line in [*lines[:SHOWN], *more])


def _note(
    found: CorpusCheck, seen: set[str], number: int, id_: str, title: str, text: str, budget: PrintBudget
) -> None:
    found.ids[id_] = number
    found.untitled += not title.strip()
    content = digest(title, text)
    if content in seen:
        found.copies.append(id_)
    seen.add(content)
    if "<" in text and _MARKUP.search(text):
        found.markup.append(id_)
    if budget.exceeded_by(id_, title, text):
        found.too_long[id_] = None


def _figures(rows: Sequence[tuple[str, int, Sequence[str]]]) -> str:
    """Returns rows of name, number and ids; what there is none of is left out, but for the first two rows."""
    kept = [row for place, row in enumerate(rows) if place < 2 or row[1]]
    lines = format_table([(f"  {name}", f"{count:,}") for name, count, _ in kept]).splitlines()
    return "".join(f"{line}{_ids(ids)}\n" for line, (*_, ids) in zip(lines, kept, strict=True))


def _ids(ids: Sequence[str]) -> str:
    if not ids:
        return ""
    return f"  ({', '.join(ids[:5])}{', …' if len(ids) > 5 else ''})"


def as_values(corpus: CorpusCheck, questions: QuestionsCheck | None) -> dict[str, Any]:
    """Returns the figures of a check as JSON values."""
    values: dict[str, Any] = {
        "passages": len(corpus.ids),
        "faults": len(corpus.faults),
        "untitled": corpus.untitled,
        "copies": len(corpus.copies),
        "too_long": len(corpus.too_long),
    }
    if questions is not None:
        coverage = questions.coverage(corpus)
        values |= {
            "questions": len(questions.rows),
            "question_faults": len(questions.faults),
            "splits": questions.splits,
            "without_gold": coverage.without_gold,
            "answerable": coverage.answerable,
        }
    return values
