"""Landlock: forbids a worker to open files, use TCP ports and signal other processes; needs no privilege.

A ruleset that handles every access right and grants none. Linux 5.13 and newer; TCP from 6.7, signals and abstract
sockets from 6.12. See https://docs.kernel.org/userspace-api/landlock.html. Standard library only: the worker imports
this file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from contextlib import suppress

from rpl.executors.isolation.kernel import LayerMissing, call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture that matters
_CREATE_RULESET_VERSION = 1
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""From which version of the interface how many access rights to files there are."""
_EXECUTE_RIGHT, _READ_RIGHT, _PATH_BENEATH = 1, 4, 1
_NETWORK_VERSION, _NETWORK_RIGHTS = 4, 0b11
_SCOPE_VERSION, _SCOPES = 6, 0b11


def version() -> int:
    """Returns the version of the kernel's interface, at least 1.

    Raises:
        LayerMissing: The kernel has none, or it is off.
    """
    return call("syscall", _CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)


def restrict(executable: Sequence[str] = ()) -> None:
    """Takes every right that Landlock knows from this thread and its children.

    Args:
        executable: Files, and folders with everything below them, that may still be read and executed; ones that do
            not exist are left out.

    Raises:
        LayerMissing: The kernel has no Landlock, or it is off.
    """
    import ctypes

    has = version()
    rights = max(count for since, count in _FILE_RIGHTS.items() if since <= has)
    attributes = (ctypes.c_uint64 * 3)(
        (1 << rights) - 1,
        _NETWORK_RIGHTS if has >= _NETWORK_VERSION else 0,
        _SCOPES if has >= _SCOPE_VERSION else 0,
    )
    size = 24 if has >= _SCOPE_VERSION else 16 if has >= _NETWORK_VERSION else 8
    ruleset = call("syscall", _CREATE_RULESET, attributes, size, 0)
    try:
        for path in executable:
            _allow(ruleset, path)
        call("syscall", _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    except PermissionError:
        return
    raise LayerMissing("a folder could be opened afterwards")


def _allow(ruleset: int, path: str) -> None:
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_PATH)
        try:
            rule = struct.pack("=Qi", _EXECUTE_RIGHT | _READ_RIGHT, descriptor)
            call("syscall", _ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
        finally:
            os.close(descriptor)
