"""Published question sets, fetched and turned into the project's form.

They come from FlashRAG's collection (Jin et al., 2024), which Search-R1 and its successors train and test on:
`{"id", "question", "golden_answers", "metadata"}`. Evidence is annotated by article titles there, not by passages, so
`gold_docs` stays empty and the titles are kept as `gold_titles`.

One file a split is written, with the official split as its name and in each row. The official test answers of HotpotQA,
2WikiMultihopQA and MuSiQue are secret; their dev sets are what everybody tests on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpl.core.errors import ConfigError, DataError
from rpl.core.files import read_jsonl, write_jsonl
from rpl.datamodules.readers import text_key
from rpl.retrieval.corpus.corpus import is_encodable, text_field
from rpl.retrieval.corpus.questions import read_questions
from rpl.retrieval.fetching.downloads import Downloader
from rpl.retrieval.fetching.plan import Wanted, announce, fetch_all, fetching, work_folder
from rpl.retrieval.fetching.sources import HubDataset

Say = Callable[[str], None]

DATASET = "RUC-NLPIR/FlashRAG_datasets"


@dataclass(frozen=True)
class QuestionSet:
    """A question set."""

    splits: tuple[str, ...]
    """The one that is tested on comes first."""
    tested: int
    """How many questions are tested on in the literature."""


SETS = {
    "nq": QuestionSet(("test", "dev", "train"), 3_610),
    "triviaqa": QuestionSet(("test", "dev", "train"), 11_313),
    "popqa": QuestionSet(("test",), 14_267),
    "hotpotqa": QuestionSet(("dev", "train"), 7_405),
    "2wikimultihopqa": QuestionSet(("dev", "train"), 12_576),
    "musique": QuestionSet(("dev", "train"), 2_417),
    "bamboogle": QuestionSet(("test",), 125),
}
GROUPS = {"search-r1": tuple(SETS)}
"""Names for several sets: `search-r1` is the suite of that paper, which trains on NQ and HotpotQA and tests on all."""


@dataclass(frozen=True)
class _File:
    """One split of one set."""

    name: str
    split: str
    rank: int
    """0 for the split that is tested on; rows of a higher rank give way to those of a lower one."""

    @property
    def remote(self) -> str:
        return f"{self.name}/{self.split}.jsonl"


def fetch_questions(
    name: str,
    out: Path,
    say: Say,
    revision: str | None = None,
    question_mark: bool = True,
    dry_run: bool = False,
) -> list[Path]:
    """Fetches question sets and writes `out/SET/SPLIT.jsonl`.

    A dev or train question whose text is tested on in any of the fetched sets is left out, and counted: a run that
    trains on it would be refused. What is tested on is never changed.

    Args:
        name: In `SETS` or `GROUPS`.
        out: Folder of the sets.
        say: Receives what it takes, and what is done.
        revision: Of the data set on the hub.
        question_mark: Whether a question without one gets a question mark at its end, as in Search-R1's protocol.
        dry_run: Whether to say what it takes, and no more.

    Returns:
        The files.

    Raises:
        DownloadError: Something cannot be fetched; what has arrived stays for the next try.
        ConfigError: There is no such set, or it does not fit on the disk.
        DataError: What came is not in FlashRAG's form; the message names file, line and field.
    """
    files = _files(name)
    targets = {file: out / file.remote for file in files}
    work = work_folder(out / name)
    missing = [file for file in files if not targets[file].exists()]
    for file in files:
        if file not in missing:
            say(f"{targets[file]} is there already")
    if not missing:
        return list(targets.values())
    source = HubDataset(DATASET, revision)
    with Downloader(say) as downloader:
        wanted = {file: Wanted(source.look_up(file.remote), work / file.remote) for file in missing}
        announce(f"{name}: questions from {source}", list(wanted.values()), out, downloader, say)
        if dry_run:
            return list(targets.values())
        with fetching(out / name, say):
            _convert(files, targets, wanted, downloader, question_mark, say)
            shutil.rmtree(work, ignore_errors=True)
    return list(targets.values())


def convert_record(
    record: dict[str, Any], dataset: str, split: str, where: str, question_mark: bool = True
) -> dict[str, Any] | None:
    """Returns a question of FlashRAG's form in ours; `None` where it has no answer.

    Args:
        record: One line of a file.
        dataset: Name of its set.
        split: Its split.
        where: File and line, for the message.
        question_mark: See `fetch_questions`.

    Raises:
        DataError: A field is missing or of another type.

    >>> record = {"id": "test_0", "question": "who wrote hamlet ", "golden_answers": ["Shakespeare"]}
    >>> found = convert_record(record, "nq", "test", "nq.jsonl:1")
    >>> found["id"], found["question"], found["answers"]
    ('nq:test_0', 'who wrote hamlet?', ['Shakespeare'])
    """
    question = text_field(record, "question", where).strip()
    if question_mark and not question.endswith("?"):
        question += "?"
    found: dict[str, Any] = {
        "id": f"{dataset}:{text_field(record, 'id', where)}",
        "question": question,
        "answers": _answers(record, where),
        "dataset": dataset,
        "split": split,
        "gold_docs": [],
    }
    metadata = record.get("metadata")
    if isinstance(metadata, dict):
        if isinstance(metadata.get("type"), str) and metadata["type"]:
            found["type"] = metadata["type"]
        titles = _titles(metadata.get("supporting_facts"))
        if titles:
            found["gold_titles"] = titles
    return found if found["answers"] else None


def _files(name: str) -> list[_File]:
    names = GROUPS.get(name, (name,))
    if not set(names) <= set(SETS):
        raise ConfigError(f"{name!r} is not published; there is {', '.join([*SETS, *GROUPS])}")
    ranks = {"dev": 1, "train": 2}
    return [
        _File(each, split, 0 if split == SETS[each].splits[0] else ranks[split])
        for each in names
        for split in SETS[each].splits
    ]


def _convert(
    files: Sequence[_File],
    targets: dict[_File, Path],
    wanted: dict[_File, Wanted],
    downloader: Downloader,
    question_mark: bool,
    say: Say,
) -> None:
    """Fetches and converts what is missing, what is tested on first; rows in an earlier rank are left out later."""
    taken: dict[str, int] = {}
    for file in sorted(files, key=lambda file: file.rank):
        target = targets[file]
        if target.exists():
            keys = [text_key(question.question) for question in read_questions(target)]
        else:
            item = wanted[file]
            fetch_all([item], downloader, file.remote)
            rows, empty = _read(item.path, file, question_mark)
            keys = [text_key(row["question"]) for row in rows]
            kept = [row for row, key in zip(rows, keys, strict=True) if taken.get(key, file.rank) >= file.rank]
            if not kept:
                raise DataError(f"{item.path}: no question of {file.remote} is left")
            write_jsonl(target, kept)
            item.path.unlink()
            say(f"{target}: {_counts(file, len(kept), empty, len(rows) - len(kept))}")
        for key in keys:
            taken.setdefault(key, file.rank)


def _counts(file: _File, kept: int, empty: int, repeated: int) -> str:
    text = f"{kept:,} questions"
    if repeated:
        text += f", without {repeated:,} that are tested on or in dev"
    if empty:
        text += f", without {empty:,} that have no answer"
    expected = SETS[file.name].tested
    if file.rank == 0 and kept != expected:
        text += f"; the literature tests on {expected:,}, so scores may not compare"
    return text


def _read(path: Path, file: _File, question_mark: bool) -> tuple[list[dict[str, Any]], int]:
    """Returns the rows of a downloaded file, and how many had no answer."""
    rows: list[dict[str, Any]] = []
    lines: dict[str, int] = {}
    empty = 0
    for number, record in read_jsonl(path):
        where = f"{path}:{number}"
        row = convert_record(record, file.name, file.split, where, question_mark)
        if row is None:
            empty += 1
            continue
        if row["id"] in lines:
            raise DataError(f"{where}: id {record['id']!r} was already used in line {lines[row['id']]}")
        lines[row["id"]] = number
        rows.append(row)
    return rows, empty


def _answers(record: dict[str, Any], where: str) -> list[str]:
    value = record.get("golden_answers")
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise DataError(f"{where}: field 'golden_answers' must be a list of strings, got {value!r}")
    return list(dict.fromkeys(item.strip() for item in items if item.strip() and is_encodable(item)))


def _titles(facts: Any) -> list[str]:
    titles: Iterable[Any] = facts.get("title") or () if isinstance(facts, dict) else ()
    return list(dict.fromkeys(title for title in titles if isinstance(title, str)))
