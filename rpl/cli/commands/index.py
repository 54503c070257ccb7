"""`rpl index`: builds the index of a corpus, shows what is in one, checks it, or asks it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rpl.cli.commands.fetching import run_fetch_index, run_import_vectors
from rpl.cli.commands.parsing import call, dispatch
from rpl.core.errors import ConfigError, DataError, RetrieverError
from rpl.core.progress import say
from rpl.core.records import Passage
from rpl.core.terminal import visible
from rpl.core.units import count_text
from rpl.executors.parent.framing import passage_frame
from rpl.retrieval.library_config import LibraryConfig

LEAST_AGREEMENT = 0.9
"""Median cosine that rows of an index must have with what its encoder makes of their passages. Its own have 1.0000, and
vectors that were imported as they are at least what `--least_similarity` asked for."""


def build(
    corpus: str,
    out: str,
    library: LibraryConfig = LibraryConfig(),
    questions: str | None = None,
    dry_run: bool = False,
) -> Path:
    """Builds the index folder of a corpus; it can then stand wherever a corpus is asked for.

    A build that was stopped goes on where it was when it is started again.

    Args:
        corpus: JSON lines of `{"id", "title", "text"}` or `{"id", "contents"}`; may be .gz.
        out: The folder to make.
        library: Backends and their settings; `--library.dense true` adds embeddings.
        questions: Questions over it, whose gold passages are then looked for in the index; see `rpl data check`.
        dry_run: Only show what it would cost, by part, and fail if there is no room for it.
    """
    from rpl.core.files import nearest_folder
    from rpl.core.units import size_text
    from rpl.retrieval.corpus.budget import PrintBudget
    from rpl.retrieval.corpus.checking import check_corpus, check_questions, shown
    from rpl.retrieval.indexing.estimate import free_room, require_room
    from rpl.retrieval.indexing.folder import build_index, plan_index

    if dry_run:
        cost = plan_index(Path(corpus), Path(out), library)
        sys.stdout.write(f"{corpus}: about {count_text(cost.passages, 'passage')}\n\n{cost.table()}\n")
        place = nearest_folder(Path(out).absolute().parent)
        free, memory = free_room(place)
        sys.stdout.write(f"here: {size_text(free)} free at {place}")
        sys.stdout.write("\n" if memory is None else f", {size_text(memory)} of memory\n")
        require_room(cost, place)
        return Path(out)
    try:
        folder = build_index(Path(corpus), Path(out), library, say)
    except DataError as error:
        raise _all_faults(Path(corpus)) or error from error.__cause__
    if questions is not None:
        rows, passages = check_questions(Path(questions)), check_corpus(folder, PrintBudget())
        sys.stdout.write(shown([*rows.faults, *rows.gold_faults(passages)]) + rows.table(passages, PrintBudget()))
    say(f"use it with --environment.library.corpus {folder}")
    return folder


def _all_faults(corpus: Path) -> DataError | None:
    """Writes all that is wrong with the rows of a corpus file; `None` where the error is no row's, or of one alone."""
    from rpl.retrieval.corpus.budget import PrintBudget
    from rpl.retrieval.corpus.checking import check_corpus, shown

    try:
        found = check_corpus(corpus, PrintBudget())
    except DataError:
        return None
    if len(found.faults) < 2:
        return None
    sys.stdout.write(shown(found.faults) + found.table(PrintBudget()))
    return DataError(f"{count_text(len(found.faults), 'row')} of {corpus} cannot be used; the first: {found.faults[0]}")


def encode(out: str, device: str = "auto", wait_s: float = 600.0) -> None:
    """Encodes passages for a build of another process, which shares the work: start one a GPU.

    Args:
        out: The folder that `rpl index build` is making.
        device: Where the encoder runs: `auto`, `cpu`, `cuda`, `cuda:1`, …
        wait_s: How long to wait for that build to have read its corpus, in seconds.
    """
    from rpl.retrieval.indexing.folder import work_folder
    from rpl.retrieval.indexing.shared_encoding import join

    join(work_folder(Path(out)), Path(out), device, wait_s, say)


def info(folder: str) -> dict[str, Any]:
    """Shows what is in an index folder, from its manifest.

    Args:
        folder: An index folder.
    """
    from dataclasses import asdict

    from rpl.retrieval.indexing.manifest import describe_manifest, read_manifest

    manifest = read_manifest(Path(folder))
    sys.stdout.write(describe_manifest(manifest))
    return asdict(manifest)


def check(corpus: str, library: LibraryConfig = LibraryConfig(), full: bool = False) -> None:
    """Opens an index and asks it canary questions: all that is in it, whatever the settings leave out.

    Args:
        corpus: An index folder, a corpus file, `atlas` or `atlas-mini`.
        library: How to open it.
        full: Also hash every file of the index folder, whatever its size.
    """
    from rpl.core.units import size_text
    from rpl.retrieval.dense.search import DenseRetriever
    from rpl.retrieval.indexing.folder import is_index_folder
    from rpl.retrieval.indexing.loading import embedding_agreement
    from rpl.retrieval.indexing.manifest import check_all_files, read_manifest
    from rpl.retrieval.library.health import check as check_health
    from rpl.retrieval.library.open_local import open_local, resolve_corpus

    config = replace(library, corpus=corpus)
    folder = resolve_corpus(corpus)
    rows: list[tuple[str, bool, str]] = []
    if full and not is_index_folder(folder):
        raise ConfigError(f"--full is for index folders, whose files have known hashes; {corpus!r} is a corpus")
    if is_index_folder(folder):
        if full:
            rows.append(("files", True, f"{size_text(check_all_files(folder))} as they were built"))
        embedded = read_manifest(folder).encoder_fingerprint is not None
        # A reranker is no part of an index.
        config = replace(config, dense=config.dense or embedded, reranker=config.reranker or "none")
    with closing(open_local(config, say)) as opened:
        rows += [(result.name, result.ok, result.detail) for result in check_health(opened)]
        if is_index_folder(folder) and isinstance(opened.dense, DenseRetriever):
            median, lowest = embedding_agreement(folder, opened.corpus, opened.dense.encoder)
            detail = f"passages encoded again have cosine {median:.4f} with their rows, at least {lowest:.4f}"
            rows.append(("embeddings", median >= LEAST_AGREEMENT, detail))
    for name, ok, detail in rows:
        sys.stdout.write(f"{name:<12}{'ok' if ok else 'FAILED':<8}{detail}\n")
    bad = [name for name, ok, _ in rows if not ok]
    if bad:
        raise RetrieverError(f"{corpus}: {', '.join(bad)} failed")


def search(
    query: str,
    corpus: str | None = None,
    primitive: Literal["bm25", "dense"] = "bm25",
    k: int = 10,
    library: LibraryConfig = LibraryConfig(),
) -> list[Passage]:
    """Shows what a primitive finds.

    Args:
        query: The query.
        corpus: An index folder, a corpus file, `atlas` or `atlas-mini`; short for `--library.corpus`.
        primitive: `bm25` or `dense`.
        k: How many passages.
        library: How to open the index.
    """
    from rpl.retrieval.library.opening import open_library

    if corpus is not None:
        library = replace(library, corpus=corpus)
    if library.corpus == LibraryConfig().corpus and corpus is None:
        say("no --corpus was given: this searches the embedded atlas of countries and cities")
    opened = open_library(replace(library, dense=library.dense or primitive == "dense"), say)
    try:
        passages = list(opened.call(primitive, {"query": query, "k": k}).passages)
    finally:
        opened.close()
    if not passages:
        sys.stdout.write("nothing found\n")
    for p in passages:
        sys.stdout.write(visible(passage_frame(f"{p.rank:>3} {p.score:8.3f} [{p.id}] {p.title}: {p.text}")) + "\n")
    return passages


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl index`."""
    actions = {
        "build": (lambda rest: call("index build", build, rest, ["corpus"]), "make the index folder of a corpus"),
        "encode": (lambda rest: call("index encode", encode, rest, ["out"]), "share the encoding of a build, on a GPU"),
        "info": (lambda rest: call("index info", info, rest, ["folder"]), "show what is in an index folder"),
        "check": (
            lambda rest: call("index check", check, rest, ["corpus"]),
            "open an index and ask it canary questions",
        ),
        "fetch": (run_fetch_index, "fetch an index that somebody serves, or published vectors"),
        "import": (run_import_vectors, "make an index with embeddings from a file"),
        "search": (lambda rest: call("index search", search, rest, ["query"]), "show what a primitive finds"),
    }
    return dispatch("index", actions, args)
