"""Calls into the Linux kernel that Python's standard library does not have, and the error for what is not there.

`ctypes` and not a package: those that wrap these calls had their last release in 2021 (pyseccomp), have pre-releases
only (landlock), or are months old with one author (py-landlock), while the calls are a stable interface of the kernel.
Standard library only: the worker imports this file.
"""

from __future__ import annotations

import os
from typing import Any

PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAPBSET_DROP = 24


class LayerMissing(Exception):  # noqa: N818 - the name says what happened
    """A layer of the sandbox cannot be put up here; the message says why."""


def library(name: str | None) -> Any:
    """Returns a shared library; `None` is the C library.

    Raises:
        LayerMissing: It is not installed.
    """
    try:
        import ctypes

        return ctypes.CDLL(name, use_errno=True)
    except (ImportError, OSError) as error:
        raise LayerMissing(f"{name or 'the C library'} cannot be loaded: {error}") from None


def call(name: str, *args: Any) -> int:
    """Calls a function of the C library that returns -1 on failure.

    Raises:
        LayerMissing: The function is missing, or the kernel refused the call.
    """
    import ctypes

    function = getattr(library(None), name, None)
    if function is None:
        raise LayerMissing(f"this system has no {name}")
    # Integers as C longs: variadic functions would otherwise read 64 bits where 32 were written.
    result = int(function(*(ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args)))
    if result < 0:
        raise LayerMissing(f"{name} failed: {os.strerror(ctypes.get_errno())}")
    return result
