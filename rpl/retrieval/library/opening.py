"""Opens what a `LibraryConfig` describes: a corpus on this machine, or one on a server."""

from __future__ import annotations

from collections.abc import Callable

from rpl.retrieval.library.library import Library
from rpl.retrieval.library_config import LibraryConfig


def open_library(config: LibraryConfig, progress: Callable[[str], None] | None = None) -> Library:
    """Opens the library that a config describes; builds its index first where there is none yet.

    Args:
        config: What to open.
        progress: Receives one line of text per step that may take a while (estimates, builds, loads).

    Raises:
        ConfigError: A setting does not fit (unknown corpus or encoder, index built with other settings).
        DataError: The corpus or the index is damaged or stale.
        MissingDependencyError: A package or model that the config needs is not installed.
        RetrieverError: The index does not find its own passages, or a server cannot be reached.
    """
    if is_url(config.corpus):
        from rpl.retrieval.library.remote import open_remote

        return open_remote(config.corpus, config.remote, config.cache_size, progress)
    from rpl.retrieval.library.open_local import open_local

    return open_local(config, progress)


def is_url(corpus: str) -> bool:
    """Tells whether `library.corpus` names a server.

    >>> is_url("http://localhost:8000"), is_url("corpus.jsonl")
    (True, False)
    """
    return corpus.startswith(("http://", "https://"))
