"""What a worker process gives up before it runs its first program.

Resource limits come from the operating system; the audit hook refuses, inside the interpreter, everything that opens,
imports, connects or starts something while a program runs. Standard library only: the worker imports this file.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

_PR_SET_NO_NEW_PRIVS = 38
_HARMLESS_EVENTS = frozenset({"exec", "sys._getframe", "sys.unraisablehook"})
"""`exec` runs the program itself; making a new code object for it is refused."""


def address_space_bytes() -> int | None:
    """Returns the current size of this process's address space, or `None` where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def harden(memory_mb: int) -> None:
    """Takes from this process what no program needs: memory past its share, files, processes, privileges, core dumps.

    Args:
        memory_mb: Address space that may be added to what the process has now, in MiB.
    """
    _forbid_new_privileges()
    size = address_space_bytes()
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NPROC: 0, resource.RLIMIT_NOFILE: 3}
    if size is not None:
        limits[resource.RLIMIT_AS] = size + memory_mb * 2**20
    os.closerange(3, 4096)
    for kind, limit in limits.items():
        with suppress(OSError, ValueError):  # a stricter limit that the system already set stays
            resource.setrlimit(kind, (limit, limit))


def _forbid_new_privileges() -> None:
    loaded = set(sys.modules)
    with suppress(OSError, AttributeError, ImportError):  # Linux only; elsewhere the other limits must do
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for name in set(sys.modules) - loaded:  # native calls are not left lying around
        del sys.modules[name]


def limit_cpu(seconds: float) -> None:
    """Lets the process use this much more processor time before the system ends it: the backstop without a parent."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime + seconds) + 2, hard))


def install_audit_hook() -> Callable[[], AbstractContextManager[None]]:
    """Installs the hook that refuses audited operations while a program runs; it cannot be removed.

    Returns:
        The seal: `with seal():` goes around the program.
    """
    sealed = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if sealed and event not in _HARMLESS_EVENTS:
            if event == "object.__getattr__" and args[1] == "f_code":
                return  # `restricted.current_line` looks for the program's frame
            raise PermissionError(f"programs may not do this ({event})")

    @contextmanager
    def seal() -> Iterator[None]:
        nonlocal sealed
        sealed = True
        try:
            yield
        finally:
            sealed = False

    sys.addaudithook(hook)
    return seal
