"""Hardens a worker process before its first program: limits, privileges, open files, audit hook.

Each layer of `layers.LAYERS` is put up by a step here and looked at afterwards; one that cannot be had is reported with
the reason and does not keep the others from being put up. Standard library only: the worker imports this file.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from rpl.executors.isolation import landlock, namespaces, seccomp
from rpl.executors.isolation.kernel import PR_GET_NO_NEW_PRIVS, PR_SET_NO_NEW_PRIVS, LayerMissing, call

Seal = Callable[[], AbstractContextManager[None]]
"""Makes the context in which a program runs."""

Step = Callable[[], object]
"""Puts up one layer; raises `LayerMissing`, `OSError` or `ValueError` where that is not possible."""

_HARMLESS_EVENTS = frozenset({"exec", "sys._getframe", "sys.unraisablehook"})
"""`exec` runs the program itself; making a new code object for it is refused."""

_PIPES = 2
"""Descriptors that stay open: 0 brings jobs, 1 takes answers."""


def harden(memory_mb: int) -> dict[str, str | None]:
    """Takes from this process what no program needs. All descriptors but 0 and 1 are closed.

    Call it when everything is loaded: no file can be opened afterwards. The process must have one thread.

    Args:
        memory_mb: Address space that may be added to what the process has now, in MiB.

    Returns:
        For each layer `None` where it holds, or why it does not; see `layers.LAYERS`.
    """
    os.closerange(_PIPES, 4096)  # the parent passed none but the standard streams
    size = address_space_bytes()  # namespaces take the file system away
    steps: dict[str, Step] = {
        "no_new_privileges": forbid_new_privileges,
        "namespaces": namespaces.enter,
        "landlock": landlock.restrict,
        "resource_limits": lambda: limit_resources(size, memory_mb),
        "seccomp": filter_calls(),
    }
    return put_up(steps)


def put_up(steps: Mapping[str, Step]) -> dict[str, str | None]:
    """Takes steps in turn; one that fails does not keep the others from being taken.

    Returns:
        For each step `None` where it succeeded, or why it did not.
    """
    report: dict[str, str | None] = {}
    for name, step in steps.items():
        try:
            step()
            report[name] = None
        except (LayerMissing, OSError, ValueError) as error:
            report[name] = str(error)
    return report


def forget_native_calls() -> None:
    """Unloads what made the calls into the kernel, so that it is not left lying around."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ctypes", "_ctypes")]:
        del sys.modules[name]


def filter_calls() -> Callable[[], None]:
    """Returns the step that installs the filter; what it needs of the file system is read now."""
    try:
        return seccomp.build()
    except LayerMissing as error:
        reason = str(error)

    def install() -> None:
        raise LayerMissing(reason)

    return install


def address_space_bytes() -> int | None:
    """Returns the current size of this process's address space, or `None` where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return None


def forbid_new_privileges() -> None:
    """Keeps this process and all that it starts from gaining privileges."""
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if call("prctl", PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
        raise LayerMissing("the kernel did not keep the flag")


def limit_resources(size: int | None, memory_mb: int) -> None:
    """Limits what this process may use; descriptors that are open stay usable.

    Args:
        size: Its address space without any program, in bytes.
        memory_mb: What may be added to that, in MiB.
    """
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: _PIPES,
    }
    if size is not None:
        limits[resource.RLIMIT_AS] = size + memory_mb * 2**20
    for kind, limit in limits.items():
        with suppress(OSError, ValueError):  # a stricter limit that the system already set stays
            resource.setrlimit(kind, (limit, limit))
        hard = resource.getrlimit(kind)[1]
        if hard == resource.RLIM_INFINITY or hard > limit:
            raise LayerMissing(f"limit {kind} is {hard}, not {limit}")
    if size is None:
        raise LayerMissing("memory is not limited: this system has no /proc that tells the size of a process")


def limit_cpu(seconds: float) -> None:
    """Lets the process use this much more processor time before the system ends it: the backstop without a parent."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime + seconds) + 2, hard))


def install_audit_hook() -> Seal:
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
