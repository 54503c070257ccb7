"""The worker process of the Monty backend: a Python process that checks and serves, and the interpreter as its child.

Programs run in the child, a native process. It is started in the middle of the hardening: after the layers that a
process hands on (no new privileges, namespaces, Landlock, a system-call filter that still allows it to start), and
before those that forbid starting anything. This process then narrows its own filter further. What the child keeps and
a worker of CPython does not have: it may map its own code, read the system's shared libraries, and make threads.
"""

from __future__ import annotations

import io
import os
import resource
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from rpl.executors.isolation import landlock, namespaces
from rpl.executors.isolation.hardening import Seal, Step, filter_calls, forbid_new_privileges, limit_resources, put_up
from rpl.executors.isolation.kernel import LayerMissing
from rpl.executors.isolation.layers import Report
from rpl.executors.monty.runner import GRACE_S, ChildGoneError, MontyRunner, binary
from rpl.executors.runtime.primitives import Host, ProgramLimits
from rpl.executors.runtime.restricted import Outcome
from rpl.executors.runtime.worker import Start, serve

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
"""Where a dynamically linked program finds its libraries; the child may read and execute what lies there."""

STARTING = (
    *("read", "write", "mmap", "mprotect", "execve", "access", "openat", "newfstatat", "fstat", "pread64", "lseek"),
    *("arch_prctl", "set_tid_address", "set_robust_list", "rseq", "prlimit64", "sched_getaffinity", "prctl", "poll"),
    *("clone", "clone3", "wait4", "pidfd_open", "kill", "pipe2", "socketpair", "dup2", "fcntl", "seccomp"),
    *("eventfd2", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait"),
)
"""System calls for starting the child, which it keeps; Landlock then allows it to execute nothing but itself."""

SERVING = ("read", "write", "epoll_ctl", "epoll_wait", "epoll_pwait", "wait4", "prlimit64", "kill")
"""System calls that this process needs to talk to the child and to limit it."""

CHILD_BASE_MB = 256
"""Address space of the child without any program, in MiB; most of it is reserved and never touched."""


def handed_on(path: str, system_calls: Sequence[str] = ()) -> dict[str, Step]:
    """Returns the layers that this process puts up before it starts the child, which inherits them.

    Args:
        path: The interpreter.
        system_calls: System calls to allow besides `STARTING`.
    """
    return {
        "no_new_privileges": forbid_new_privileges,
        "namespaces": lambda: namespaces.enter(empty_root=False),
        "landlock": lambda: landlock.restrict((path, *LIBRARIES)),
        "seccomp": filter_calls((*STARTING, *system_calls)),
    }


class MontyWorker:
    """Starts the interpreter while the process hardens, and runs programs in it."""

    def __init__(self) -> None:
        self._runner: MontyRunner | None = None

    def give_up(self, start: Start) -> Report:
        """Hardens this process and its child; see `hardening.harden`."""
        os.closerange(3, 4096)  # the parent passed none but the standard streams
        own_filter = filter_calls((*SERVING, *start["system_calls"]))
        memory_mb = start["memory_mb"]
        path = binary()
        with _open_size() as size:
            report = put_up(handed_on(path, start["system_calls"]))
            self._runner = runner = MontyRunner(path, memory_mb, start["wall_s"])
            os.close(2)  # what the child has to say goes through its pipes
            more = put_up(
                {
                    "resource_limits": lambda: _limit(runner.pid, _read_size(size), memory_mb),
                    "seccomp": own_filter,
                }
            )
        return {**report, **{name: report.get(name) or reason for name, reason in more.items()}}

    def run(self, source: str, question: str, limits: ProgramLimits, host: Host, seal: Seal) -> Outcome:
        """Runs a program; see `MontyRunner.run`. The parent judges from how the process ended where the child died."""
        assert self._runner is not None
        _limit_cpu(self._runner)
        try:
            return self._runner.run(source, question, limits, host, seal)
        except ChildGoneError as gone:  # this process can start no other child; it ends as that one did
            if gone.signal is not None:
                os.kill(os.getpid(), gone.signal)
            raise

    def line(self) -> int | None:
        """Returns the line of the program that is being executed."""
        return None if self._runner is None else self._runner.line()


def _open_size() -> TextIO:
    try:
        return Path("/proc/self/statm").open()
    except OSError:  # not on this system
        return io.StringIO()


def _read_size(statm: TextIO) -> int | None:
    pages = statm.read().split()
    return int(pages[0]) * resource.getpagesize() if pages else None


def _limit(child: int, size: int | None, memory_mb: int) -> None:
    limit_resources(size, memory_mb)
    if not hasattr(resource, "prlimit"):
        raise LayerMissing("this system cannot limit another process")
    limits = {
        resource.RLIMIT_AS: (CHILD_BASE_MB + memory_mb) * 2**20,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 3,
    }
    for kind, limit in limits.items():
        resource.prlimit(child, kind, (limit, limit))


def _limit_cpu(runner: MontyRunner) -> None:
    if not hasattr(resource, "prlimit"):
        return
    clock = ~runner.pid << 3 | 2  # the clock of another process's processor time, see clock_getcpuclockid(3)
    with suppress(OSError):  # the process has ended, which the run will find out
        seconds = int(time.clock_gettime(clock) + runner.wall_s + GRACE_S) + 2
        resource.prlimit(runner.pid, resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


def main() -> None:
    """The main module of workers that run programs in Monty."""
    worker = MontyWorker()
    serve(worker.run, worker.line, worker.give_up)
