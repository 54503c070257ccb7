"""Runs a service on a port until it is told to stop."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rpl.core.distribution import install_line
from rpl.core.errors import ConfigError, MissingDependencyError, RetrieverError
from rpl.core.units import count_text
from rpl.retrieval.library.library import Library
from rpl.retrieval.serving.service_config import ServiceConfig


def serve(
    open_library: Callable[[], Library],
    host: str,
    port: int,
    config: ServiceConfig,
    say: Callable[[str], None],
) -> None:
    """Serves a library over HTTP. The port answers `/health` at once, and everything else when the library is open.

    On SIGTERM or SIGINT no new request is taken, and those inside get `config.stop_s` seconds to finish.

    Args:
        open_library: Opens the library.
        host: The address to listen on.
        port: 0 takes any free one.
        config: How requests are treated.
        say: Told the address, and when the library is ready.

    Raises:
        ConfigError: The address cannot be listened on.
        MissingDependencyError: FastAPI or uvicorn is not installed.
        RetrieverError: The library cannot be opened.
    """
    try:
        import uvicorn

        from rpl.retrieval.serving.app import create_app
        from rpl.retrieval.serving.service import RetrievalService
    except ImportError as error:
        raise MissingDependencyError(
            f"a retrieval server needs more packages: {install_line('serve')} ({error})"
        ) from error
    service = RetrievalService(open_library, config)
    settings = uvicorn.Config(
        create_app(service),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=max(1, round(config.stop_s)),
    )
    server = uvicorn.Server(settings)
    try:
        listening = settings.bind_socket()
    except (OSError, SystemExit) as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there ({error})") from error
    # asyncio does not see that a socket it was given is TCP: without this, answers wait 40 ms for an acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    say(f"retrieval server on http://{host}:{listening.getsockname()[1]}; the library is loading")
    watch = threading.Thread(target=_announce, args=(server, service, say), daemon=True)
    watch.start()
    with suppress(KeyboardInterrupt):  # uvicorn raises it once more after it has stopped in good order
        server.run(sockets=[listening])
    if service.failure is not None:
        raise RetrieverError(f"the library cannot be opened: {service.failure}")


def _announce(server: object, service: object, say: Callable[[str], None]) -> None:
    """Tells when the library is ready, and stops a server whose library never will be."""
    import uvicorn

    from rpl.retrieval.serving.service import RetrievalService, Unavailable

    assert isinstance(server, uvicorn.Server)
    assert isinstance(service, RetrievalService)
    while not server.should_exit:
        if service.failure is not None:
            server.should_exit = True
            return
        try:
            library = service.library
        except Unavailable:
            time.sleep(0.05)
            continue
        names = ", ".join(library.primitives)
        size = "passages of unknown number" if library.size is None else count_text(library.size, "passage")
        say(f"ready: {size}, {names}, fingerprint {library.fingerprint}")
        return
