"""`rpl index`: builds the index of a corpus, checks one, or asks it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rpl.commands.parsing import call, dispatch
from rpl.errors import RetrieverError
from rpl.progress import say
from rpl.retrieval.config import LibraryConfig
from rpl.types import Passage


def build(corpus: str, out: str, library: LibraryConfig = LibraryConfig()) -> Path:
    """Builds the index folder of a corpus; it can then stand wherever a corpus is asked for.

    Args:
        corpus: JSON lines of `{"id", "title", "text"}` or `{"id", "contents"}`; may be .gz.
        out: The folder to make.
        library: Backends and their settings; `--library.dense true` adds embeddings.
    """
    from rpl.retrieval.index_files import build_index

    folder = build_index(Path(corpus), Path(out), library, say)
    say(f"index ready: use it with --environment.library.corpus {folder}")
    return folder


def check(corpus: str, library: LibraryConfig = LibraryConfig()) -> None:
    """Opens an index and asks it canary questions.

    Args:
        corpus: An index folder, a corpus file, `atlas` or `atlas-mini`.
        library: How to open it.
    """
    from rpl.retrieval.health import check as check_health
    from rpl.retrieval.library import open_library

    opened = open_library(replace(library, corpus=corpus), say)
    try:
        results = check_health(opened)
    finally:
        opened.close()
    for result in results:
        sys.stdout.write(f"{result.name:<12}{'ok' if result.ok else 'FAILED':<8}{result.detail}\n")
    bad = [result.name for result in results if not result.ok]
    if bad:
        raise RetrieverError(f"{corpus}: {', '.join(bad)} failed")


def search(
    query: str,
    corpus: str = "atlas",
    primitive: Literal["bm25", "dense"] = "bm25",
    k: int = 10,
    library: LibraryConfig = LibraryConfig(),
) -> list[Passage]:
    """Shows what a primitive finds.

    Args:
        query: The query.
        corpus: An index folder, a corpus file, `atlas` or `atlas-mini`.
        primitive: `bm25` or `dense`.
        k: How many passages.
        library: How to open the index.
    """
    from rpl.retrieval.library import open_library

    opened = open_library(replace(library, corpus=corpus, dense=library.dense or primitive == "dense"), say)
    try:
        passages = list(opened.call(primitive, {"query": query, "k": k}).passages)
    finally:
        opened.close()
    for p in passages:
        sys.stdout.write(f"{p.rank:>3} {p.score:8.3f} [{p.id}] {p.title}: {p.text}\n")
    return passages


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl index`."""
    actions = {
        "build": (lambda rest: call("index build", build, rest, ["corpus"]), "make the index folder of a corpus"),
        "check": (
            lambda rest: call("index check", check, rest, ["corpus"]),
            "open an index and ask it canary questions",
        ),
        "search": (lambda rest: call("index search", search, rest, ["query"]), "show what a primitive finds"),
    }
    return dispatch("index", actions, args)
