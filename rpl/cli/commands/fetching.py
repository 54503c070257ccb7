"""`rpl data fetch`, `rpl index fetch` and `rpl index import`: what others have published, in the project's form."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rpl.cli.commands.parsing import call
from rpl.core.errors import ConfigError
from rpl.core.progress import say
from rpl.retrieval.library_config import LibraryConfig


def fetch_data(
    name: str, out: str = "data", revision: str | None = None, question_mark: bool = True, dry_run: bool = False
) -> list[Path]:
    """Fetches a published corpus or published questions; goes on where an interrupted download was.

    Args:
        name: `wiki18` (a corpus), `nq`, `triviaqa`, `popqa`, `hotpotqa`, `2wikimultihopqa`, `musique`, `bamboogle`
            (questions), or `search-r1` (all of these questions).
        out: Folder in which the folder NAME is made, with corpus.jsonl.gz, or with one file a split.
        revision: Branch, tag or commit of the data set on the hub.
        question_mark: Put a question mark after questions that have none, as Search-R1 does.
        dry_run: Say what it takes, and end.
    """
    from rpl.datamodules.published_questions import GROUPS, SETS, fetch_questions
    from rpl.retrieval.fetching.published_corpora import CORPORA, fetch_corpus

    folder = Path(out).expanduser()
    if name in CORPORA:
        return [fetch_corpus(name, folder, _teller(dry_run), revision, dry_run)]
    if name not in SETS and name not in GROUPS:
        raise ConfigError(f"{name!r} is not published; there is {', '.join([*CORPORA, *SETS, *GROUPS])}")
    return fetch_questions(name, folder, _teller(dry_run), revision, question_mark, dry_run)


def fetch_index(
    source: str,
    out: str,
    corpus: str | None = None,
    revision: str | None = None,
    library: LibraryConfig = LibraryConfig(),
    dry_run: bool = False,
    least_similarity: float = 0.999,
) -> Path:
    """Fetches an index folder that somebody serves, or makes one of published vectors; goes on after an interruption.

    Args:
        source: The URL of an index folder, `owner/name` of a data set on the hub that holds one, or `wiki18-e5`.
        out: The index folder to make.
        corpus: For `wiki18-e5`: the corpus file, where it is here already.
        revision: Branch, tag or commit of the data set on the hub.
        library: For `wiki18-e5`: how the index is built (`embedding_dtype`, `dense_index`, …).
        dry_run: Say what it takes, and end.
        least_similarity: For `wiki18-e5`: median cosine that sampled vectors must have with the encoder's own.
    """
    from rpl.retrieval.fetching import index_folders
    from rpl.retrieval.fetching.published_corpora import VECTORS, fetch_vectors
    from rpl.retrieval.fetching.sources import open_source

    folder = Path(out).expanduser()
    if source in VECTORS:
        given = Path(corpus).expanduser() if corpus else None
        return fetch_vectors(source, folder, library, _teller(dry_run), given, revision, dry_run, least_similarity)
    if "/" not in source:
        raise ConfigError(
            f"{source!r} is not published; there is {', '.join(VECTORS)}, or give a URL or a data set (owner/name)"
        )
    if corpus is not None:
        raise ConfigError(f"--corpus: the index at {source!r} brings its own")
    return index_folders.fetch_index(open_source(source, revision), folder, _teller(dry_run), dry_run)


def import_vectors(
    corpus: str,
    vectors: str | list[str],
    out: str,
    library: LibraryConfig = LibraryConfig(),
    normalize: bool = False,
    least_similarity: float = 0.999,
) -> Path:
    """Builds the index folder of a corpus with embeddings that are read from a file instead of being computed.

    Args:
        corpus: JSON lines of `{"id", "title", "text"}` or `{"id", "contents"}`, in the order of the vectors.
        vectors: A flat faiss index or a .npy file; a pattern (`part_*`) or a list for the parts of one.
        out: The folder to make.
        library: Backends and their settings; `--library.encoder` names the encoder that the vectors come from.
        normalize: Scale the vectors to length one.
        least_similarity: Median cosine that sampled vectors must have with the encoder's own, in (0, 1].
    """
    from dataclasses import replace

    from rpl.retrieval.fetching.importing import import_index

    paths = [vectors] if isinstance(vectors, str) else vectors
    found = [match for path in paths for match in _expanded(path)]
    config = replace(library, dense=True)
    return import_index(Path(corpus), found, Path(out), config, normalize, False, say, least_similarity)


def _teller(dry_run: bool) -> Callable[[str], None]:
    """Returns where the plan goes: it is the result of a dry run, and news about a real one."""
    return _write if dry_run else say


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _expanded(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.exists() or not any(sign in path.name for sign in "*?["):
        return [path]
    found = sorted(path.parent.glob(path.name))
    if not found:
        raise ConfigError(f"--vectors: no file is named like {pattern!r}")
    return found


def run_fetch_data(args: Sequence[str]) -> Any:
    """Parses and executes `rpl data fetch`."""
    return call("data fetch", fetch_data, args, ["name"])


def run_fetch_index(args: Sequence[str]) -> Any:
    """Parses and executes `rpl index fetch`."""
    return call("index fetch", fetch_index, args, ["source"])


def run_import_vectors(args: Sequence[str]) -> Any:
    """Parses and executes `rpl index import`."""
    return call("index import", import_vectors, args, ["corpus"])
