"""`rpl data`: fetches published data, writes the embedded Atlas data set, or checks a user's own files."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from rpl.cli.commands.fetching import run_fetch_data
from rpl.cli.commands.parsing import call, dispatch
from rpl.core.errors import ConfigError, DataError
from rpl.core.units import count_text


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


def check(
    corpus: str, questions: str | None = None, printed_tokens: int = 512, policy: str | None = None
) -> dict[str, Any]:
    """Reads a corpus, and questions over it, and reports all that is wrong or unusual, by file and line.

    Args:
        corpus: JSON lines of `{"id", "title", "text"}` or `{"id", "contents"}`; may be .gz, or an index folder.
        questions: JSON lines of `{"id", "question", "answers", "gold_docs", "split", …}`.
        printed_tokens: The print budget of a program: longer passages can never be printed.
        policy: Policy whose tokenizer counts them; without it about four bytes count as one token.
    """
    from rpl.retrieval.corpus.budget import PrintBudget, estimated_tokens
    from rpl.retrieval.corpus.checking import as_values, check_corpus, check_questions, shown

    if printed_tokens < 1:
        raise ConfigError(f"--printed_tokens must be at least 1, got {printed_tokens}")
    budget = PrintBudget(printed_tokens, estimated_tokens if policy is None else _counter(policy))
    passages = check_corpus(Path(corpus), budget)
    rows = None if questions is None else check_questions(Path(questions))
    faults = [*passages.faults, *(rows.faults if rows else [])]
    gold = rows.gold_faults(passages) if rows else []
    sys.stdout.write(f"{shown(faults)}{shown(gold)}{passages.table(budget)}")
    if rows is not None:
        sys.stdout.write(rows.table(passages, budget))
    wrong = [count_text(len(faults), "row") + " cannot be used"] if faults else []
    if gold:
        wrong.append(count_text(len(gold), "gold id") + f" {'is' if len(gold) == 1 else 'are'} not in {corpus}")
    if wrong:
        raise DataError(f"{' and '.join(wrong)}; the first: {[*faults, *gold][0]}")
    return as_values(passages, rows)


def _counter(policy: str) -> Callable[[str], int]:
    from transformers import AutoTokenizer

    from rpl.policy.loading import resolve_model

    tokenizer: Any = AutoTokenizer.from_pretrained(resolve_model(policy), local_files_only=True)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl data`."""
    actions = {
        "atlas": (lambda rest: call("data atlas", atlas, rest), "write the embedded Atlas data set as JSON lines"),
        "check": (lambda rest: call("data check", check, rest), "check a corpus, and questions over it"),
        "fetch": (run_fetch_data, "fetch a published corpus or published questions"),
    }
    return dispatch("data", actions, args)
