"""The client end of HTTP: one deadline a request, and every failure a `RetrieverError`.

A server that says when it wants to be asked again (503 or 429 with `Retry-After`) is asked again then, within the
deadline. Nothing else is: what to do about faults is decided in one place, `rpl.environment.faults`.
"""

from __future__ import annotations

import random
import time
from typing import Any

import httpx2

from rpl.core.errors import RetrieverError
from rpl.retrieval.library.wire import parse_json
from rpl.retrieval.library_config import RemoteConfig

SPREAD_S = 0.1
"""Seconds over which requests that were sent away together come again."""

MAX_REPLY = 64 * 1024 * 1024
"""The longest reply that is read, in bytes."""

_BUSY = frozenset({429, 503})


class Client:
    """Talks JSON to one server. Safe to use from several threads.

    Args:
        url: The server, such as `http://localhost:8000`.
        config: Deadline and connections.
        transport: Replaces the network, for tests.
    """

    def __init__(self, url: str, config: RemoteConfig, transport: httpx2.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._config = config
        self._http = httpx2.Client(
            transport=transport,
            limits=httpx2.Limits(max_connections=config.connections, max_keepalive_connections=config.connections),
            trust_env=False,  # a proxy between a run and its own retriever is never wanted
        )

    def get(self, path: str) -> Any:
        """Returns the JSON value that the server answers with; see `post`."""
        return self._request("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        """Sends a JSON value and returns the one that the server answers with.

        Raises:
            RetrieverError: There was no sound answer before the deadline.
        """
        return self._request("POST", path, body)

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _request(self, method: str, path: str, body: Any) -> Any:
        deadline = time.monotonic() + self._config.timeout_s
        while True:
            response, data = self._once(method, path, body, deadline)
            pause = _asked_to_wait(response)
            if pause is None or time.monotonic() + pause >= deadline:
                break
            time.sleep(pause)
        where = f"{self.url}{path}"
        if response.status_code != 200:
            raise RetrieverError(f"{where}: {_reason(response.status_code, data)}")
        return parse_json(data, where)

    def _once(self, method: str, path: str, body: Any, deadline: float) -> tuple[httpx2.Response, bytes]:
        where = f"{self.url}{path}"
        left = max(0.001, deadline - time.monotonic())
        try:
            with self._http.stream(method, where, json=body, timeout=left) as response:
                return response, _read(response, deadline)
        except httpx2.TimeoutException as error:
            raise RetrieverError(f"{where} did not answer within {self._config.timeout_s:g} s") from error
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise RetrieverError(f"{where}: {type(error).__name__}: {error}") from error


def _read(response: httpx2.Response, deadline: float) -> bytes:
    """Reads a body that may be sent drop by drop: the deadline holds for all of it."""
    parts: list[bytes] = []
    size = 0
    for part in response.iter_bytes():
        parts.append(part)
        size += len(part)
        if size > MAX_REPLY:
            raise RetrieverError(f"the reply is longer than {MAX_REPLY} bytes")
        if time.monotonic() > deadline:
            raise httpx2.ReadTimeout("the reply was not complete before the deadline")
    return b"".join(parts)


def _reason(status: int, data: bytes) -> str:
    text = data[:300].decode("utf-8", "replace").strip()
    return f"HTTP {status}{': ' if text else ''}{text}"


def _asked_to_wait(response: httpx2.Response) -> float | None:
    """Returns the seconds after which a busy server wants to be asked again, spread out a little, or `None`."""
    if response.status_code not in _BUSY or "retry-after" not in response.headers:
        return None
    try:
        return max(0.0, float(response.headers["retry-after"])) + random.uniform(0.0, SPREAD_S)
    except ValueError:
        return None
