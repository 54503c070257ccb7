"""Serves primitives from a library, within a deadline."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpl.retrieval.library.library import CallResult, Library


class ServiceTimeout(Exception):  # noqa: N818 - the name says what happened
    """The library answered after the deadline."""


class LibraryService:
    """Calls a library in the caller's thread; safe to use from many threads at once, which share nothing here.

    A call that hangs is dealt with by whoever watches the thread; see `crew`.

    Args:
        library: Serves the calls.
    """

    def __init__(self, library: Library) -> None:
        self._library = library

    def call(self, name: str, args: Mapping[str, Any], deadline: float) -> CallResult:
        """Calls the library once; what is tried again, and when, is decided in `rpl.environment.faults`.

        Args:
            name: The primitive.
            args: Its JSON arguments.
            deadline: On the monotonic clock, in seconds.

        Raises:
            PrimitiveError: The arguments are the program's fault.
            RetrieverError: Retrieval failed.
            ServiceTimeout: The answer came after the deadline.
        """
        result = self._library.call(name, args)
        if time.monotonic() > deadline:
            raise ServiceTimeout
        return result
