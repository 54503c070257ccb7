"""`rpl data`: fetches published data, writes the embedded Atlas data set, or checks a user's own files."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rpl.cli.commands.fetching import run_fetch_data
from rpl.cli.commands.parsing import call, dispatch
from rpl.core.errors import DataError


def atlas(out: str, name: Literal["atlas", "atlas-mini"] = "atlas") -> Path:
    """Writes the Atlas corpus and its questions as JSON lines.

    Args:
        out: Folder for corpus.jsonl and questions.jsonl.
        name: The whole atlas, or the small one that the tests use.
    """
    from rpl.atlas import materialise

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    source = materialise(name)
    for file in ("corpus.jsonl", "questions.jsonl"):
        if (folder / file).exists():
            raise DataError(f"{folder / file} exists already; remove it or choose another --out")
        shutil.copyfile(source / file, folder / file)
    return folder


def check(corpus: str, questions: str | None = None) -> dict[str, Any]:
    """Reads a corpus, and questions over it, and reports what is wrong by file and line.

    Args:
        corpus: JSON lines of `{"id", "title", "text"}` or `{"id", "contents"}`; may be .gz.
        questions: JSON lines of `{"id", "question", "answers", "gold_docs", "split", …}`.
    """
    from rpl.retrieval.corpus.corpus import read_corpus
    from rpl.retrieval.corpus.questions import check_against_corpus, read_questions

    passages = read_corpus(Path(corpus))
    sys.stdout.write(f"{corpus}: {len(passages)} passages\n")
    result: dict[str, Any] = {"passages": len(passages)}
    if questions is not None:
        rows = read_questions(Path(questions))
        splits = Counter(q.split or "(no split)" for q in rows)
        without = sum(not q.gold_docs for q in rows)
        by_split = ", ".join(f"{n} {s}" for s, n in splits.items())
        sys.stdout.write(f"{questions}: {len(rows)} questions ({by_split}), {without} without gold\n")
        problems = check_against_corpus(Path(questions), passages)
        if problems:
            shown = "\n".join(f"  {p}" for p in problems[:20])
            raise DataError(f"{len(problems)} gold ids are not in {corpus}:\n{shown}")
        result |= {"questions": len(rows), "without_gold": without, "splits": dict(splits)}
    return result


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl data`."""
    actions = {
        "atlas": (lambda rest: call("data atlas", atlas, rest), "write the embedded Atlas data set as JSON lines"),
        "check": (lambda rest: call("data check", check, rest), "check a corpus, and questions over it"),
        "fetch": (run_fetch_data, "fetch a published corpus or published questions"),
    }
    return dispatch("data", actions, args)
