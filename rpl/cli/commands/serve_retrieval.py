"""`rpl serve-retrieval`: serves a corpus over HTTP to any number of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rpl.cli.commands.parsing import call
from rpl.core.errors import ConfigError
from rpl.core.progress import say
from rpl.retrieval.library_config import LibraryConfig
from rpl.retrieval.serving.service_config import ServiceConfig


def serve_retrieval(
    corpus: str = "",
    host: str = "127.0.0.1",
    port: int = 8000,
    library: LibraryConfig = LibraryConfig(),
    service: ServiceConfig = ServiceConfig(),
) -> None:
    """Serves a corpus over HTTP: `library.corpus: http://HOST:PORT` in a run's YAML asks it.

    There is no password: listen on addresses only that those may reach who may read the corpus.

    Args:
        corpus: Short for `--library.corpus`.
        host: The address to listen on.
        port: The port; 0 takes any free one and says which.
        library: The corpus and its search backends.
        service: Threads, queue and limits.
    """
    from rpl.retrieval.library.opening import is_url, open_library
    from rpl.retrieval.serving.server import serve

    config = replace(library, corpus=corpus) if corpus else library
    if is_url(config.corpus):
        raise ConfigError(f"library.corpus must be a corpus on this machine, got the server {config.corpus!r}")
    serve(lambda: open_library(config, say), host, port, service, say)


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl serve-retrieval`."""
    return call("serve-retrieval", serve_retrieval, args)
