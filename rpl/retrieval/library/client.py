"""The client end of HTTP: one deadline a request, retries with jitter, and every failure a `RetrieverError`."""

from __future__ import annotations

import random
import time
from typing import Any

import httpx2

from rpl.core.errors import RetrieverError
from rpl.retrieval.config import RemoteConfig
from rpl.retrieval.library.wire import parse_json

BACKOFF_S = 0.1
"""The pause before a retry is drawn from [0, BACKOFF_S * 2 ** attempt]; a server's `Retry-After` is added."""

MAX_REPLY = 64 * 1024 * 1024
"""The longest reply that is read, in bytes."""

_AGAIN = frozenset({408, 429, 500, 502, 503, 504})


class Client:
    """Talks JSON to one server. Safe to use from several threads.

    Args:
        url: The server, such as `http://localhost:8000`.
        config: Deadline, retries and connections.
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
            RetrieverError: There was no sound answer before the deadline, retries included.
        """
        return self._request("POST", path, body)

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _request(self, method: str, path: str, body: Any) -> Any:
        deadline = time.monotonic() + self._config.timeout_s
        attempt = 0
        while True:
            try:
                return self._once(method, path, body, deadline)
            except _Retry as failure:
                pause = failure.after_s + random.uniform(0.0, BACKOFF_S * 2**attempt)
                if attempt == self._config.retries or time.monotonic() + pause >= deadline:
                    tries = f" ({attempt + 1} tries)" if attempt else ""
                    raise RetrieverError(f"{self.url}{path}: {failure}{tries}") from failure.__cause__
            attempt += 1
            time.sleep(pause)

    def _once(self, method: str, path: str, body: Any, deadline: float) -> Any:
        where = f"{self.url}{path}"
        left = max(0.001, deadline - time.monotonic())
        try:
            with self._http.stream(method, where, json=body, timeout=left) as response:
                data = _read(response, deadline)
        except httpx2.TimeoutException as error:
            # Asking again would only add to the load of a server that is slow already.
            raise RetrieverError(f"{where} did not answer within {self._config.timeout_s:g} s") from error
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise _Retry(f"{type(error).__name__}: {error}") from error
        if response.status_code in _AGAIN:
            raise _Retry(_reason(response.status_code, data), _retry_after(response))
        if response.status_code != 200:
            raise RetrieverError(f"{where}: {_reason(response.status_code, data)}")
        try:
            return parse_json(data, where)
        except RetrieverError as error:
            raise _Retry(str(error)) from error


class _Retry(Exception):  # noqa: N818 - it is caught, never shown
    """An attempt failed in a way that another one may not."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


def _read(response: httpx2.Response, deadline: float) -> bytes:
    """Reads a body that may be sent drop by drop: the deadline holds for all of it."""
    parts: list[bytes] = []
    size = 0
    for part in response.iter_bytes():
        parts.append(part)
        size += len(part)
        if size > MAX_REPLY:
            raise _Retry(f"the reply is longer than {MAX_REPLY} bytes")
        if time.monotonic() > deadline:
            raise httpx2.ReadTimeout("the reply was not complete before the deadline")
    return b"".join(parts)


def _reason(status: int, data: bytes) -> str:
    text = data[:300].decode("utf-8", "replace").strip()
    return f"HTTP {status}{': ' if text else ''}{text}"


def _retry_after(response: httpx2.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
