"""Serves primitives from a library with retries and a deadline that even a hanging backend cannot outlast."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rpl.errors import RetrieverError

if TYPE_CHECKING:
    from rpl.retrieval.library import CallResult, Library

BACKOFF_S = 0.05
"""Pause before the first retry of a failed call; it doubles with each further one."""


class ServiceTimeout(Exception):  # noqa: N818 - the name says what happened
    """The library did not answer before the deadline."""


class LibraryService:
    """Runs library calls on a thread of its own, so that the caller can stop waiting for them.

    A thread whose call hangs is left behind (Python cannot stop it) and the next call starts a fresh one.

    Args:
        library: Serves the calls.
        retries: How often a call that failed with `RetrieverError` is tried again.
    """

    def __init__(self, library: Library, retries: int) -> None:
        self._library = library
        self._retries = retries
        self._requests: queue.SimpleQueue[_Request | None] | None = None

    def call(self, name: str, args: Mapping[str, Any], deadline: float) -> CallResult:
        """Calls the library, again after a short pause where retrieval failed.

        Args:
            name: The primitive.
            args: Its JSON arguments.
            deadline: On the monotonic clock, in seconds.

        Raises:
            PrimitiveError: The arguments are the program's fault.
            RetrieverError: Retrieval failed on every try.
            ServiceTimeout: There was no answer before the deadline.
        """
        for attempt in range(self._retries + 1):
            try:
                return self._call_once(name, args, deadline)
            except RetrieverError:
                pause = BACKOFF_S * 2**attempt
                if attempt == self._retries or time.monotonic() + pause >= deadline:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _call_once(self, name: str, args: Mapping[str, Any], deadline: float) -> CallResult:
        if self._requests is None:
            self._requests = queue.SimpleQueue()
            threading.Thread(target=_work, args=(self._library, self._requests), daemon=True).start()
        request = _Request(name, args)
        self._requests.put(request)
        if not request.finished.wait(max(0.0, deadline - time.monotonic())):
            self.close()
            raise ServiceTimeout
        if request.error is not None:
            raise request.error
        assert request.result is not None
        return request.result

    def close(self) -> None:
        """Lets the thread end once its call returns."""
        if self._requests is not None:
            self._requests.put(None)
            self._requests = None


class _Request:
    def __init__(self, name: str, args: Mapping[str, Any]) -> None:
        self.name = name
        self.args = args
        self.finished = threading.Event()
        self.result: CallResult | None = None
        self.error: BaseException | None = None


def _work(library: Library, requests: queue.SimpleQueue[_Request | None]) -> None:
    while (request := requests.get()) is not None:
        try:
            request.result = library.call(request.name, request.args)
        except BaseException as error:  # raised again in the thread that waits
            request.error = error
        request.finished.set()
        del request
