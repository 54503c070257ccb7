"""Serves primitives from a library, again where retrieval failed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rpl.core.errors import RetrieverError

if TYPE_CHECKING:
    from rpl.retrieval.library.library import CallResult, Library

BACKOFF_S = 0.05
"""Pause before the first retry of a failed call; it doubles with each further one."""


class ServiceTimeout(Exception):  # noqa: N818 - the name says what happened
    """The library answered after the deadline."""


class LibraryService:
    """Calls a library in the caller's thread; safe to use from many threads at once, which share nothing here.

    A call that hangs is dealt with by whoever watches the thread; see `crew`.

    Args:
        library: Serves the calls.
        retries: How often a call that failed with `RetrieverError` is tried again.
    """

    def __init__(self, library: Library, retries: int) -> None:
        self._library = library
        self._retries = retries

    def call(self, name: str, args: Mapping[str, Any], deadline: float) -> CallResult:
        """Calls the library, again after a short pause where retrieval failed.

        Args:
            name: The primitive.
            args: Its JSON arguments.
            deadline: On the monotonic clock, in seconds.

        Raises:
            PrimitiveError: The arguments are the program's fault.
            RetrieverError: Retrieval failed on every try.
            ServiceTimeout: The answer came after the deadline.
        """
        for attempt in range(self._retries + 1):
            try:
                result = self._library.call(name, args)
            except RetrieverError:
                pause = BACKOFF_S * 2**attempt
                if attempt == self._retries or time.monotonic() + pause >= deadline:
                    raise
                time.sleep(pause)
            else:
                if time.monotonic() > deadline:
                    raise ServiceTimeout
                return result
        raise AssertionError("unreachable")
