"""The system-call filter: a worker may compute, read its input, write its output and end; the kernel refuses the rest.

Built with libseccomp, the maintained library that knows the numbers of system calls on each architecture. What is not
allowed fails with EPERM. See seccomp(2). Standard library only: the worker imports this file.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Callable
from typing import Any

from rpl.executors.isolation.kernel import LayerMissing, library

ALLOWED = (
    *("brk", "madvise", "mremap", "munmap", "futex", "sched_yield"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall"),
    *("clock_gettime", "clock_getres", "gettimeofday", "time", "getrandom", "getrusage", "getpid", "gettid"),
    *("close", "exit", "exit_group"),
)
"""System calls that are allowed whatever their arguments; see `_CONDITIONAL` for the others."""

_NAME = "libseccomp.so.2"
_ACT_ALLOW = 0x7FFF_0000
_ACT_EPERM = 0x0005_0000 | errno.EPERM
_CMP_EQ, _CMP_MASKED_EQ = 4, 7
_ATTRIBUTE_TSYNC = 4
_UNKNOWN = -1

# (system call, ((argument, comparison, operands), …)): all conditions of an entry must hold
_CONDITIONAL: tuple[tuple[str, tuple[tuple[int, int, int, int], ...]], ...] = (
    ("read", ((0, _CMP_EQ, 0, 0),)),
    ("write", ((0, _CMP_EQ, 1, 0),)),
    ("mmap", ((2, _CMP_MASKED_EQ, mmap.PROT_EXEC, 0), (3, _CMP_MASKED_EQ, mmap.MAP_ANONYMOUS, mmap.MAP_ANONYMOUS))),
    ("mprotect", ((2, _CMP_MASKED_EQ, mmap.PROT_EXEC, 0),)),
    ("prlimit64", ((0, _CMP_EQ, 0, 0), (1, _CMP_EQ, resource.RLIMIT_CPU, 0))),  # renewed for each program
)


def build() -> Callable[[], None]:
    """Builds the filter; needs the file system, where libseccomp is.

    Returns:
        A function that puts it on every thread of this process, for good. Like this one, it raises `LayerMissing`.

    Raises:
        LayerMissing: libseccomp is not installed.
    """
    lib = _prepared()
    context = lib.seccomp_init(_ACT_EPERM)
    if not context:
        raise LayerMissing("libseccomp cannot make a filter")
    _check("seccomp_attr_set", lib.seccomp_attr_set(context, _ATTRIBUTE_TSYNC, 1))
    comparison = _comparison()
    for name, conditions in (*((name, ()) for name in ALLOWED), *_CONDITIONAL):
        _allow(lib, context, name, (comparison * len(conditions))(*conditions))

    def install() -> None:
        _check("seccomp_load", lib.seccomp_load(context))
        lib.seccomp_release(context)
        try:
            os.getpriority(os.PRIO_PROCESS, 0)
        except PermissionError:
            return
        raise LayerMissing("a system call that is not allowed went through")

    return install


def _allow(lib: Any, context: Any, name: str, conditions: Any) -> None:
    number = lib.seccomp_syscall_resolve_name(name.encode())
    if number == _UNKNOWN:
        return  # an older libseccomp; a call that it does not know stays refused
    result = lib.seccomp_rule_add_array(context, _ACT_ALLOW, number, len(conditions), conditions)
    if result != -errno.EDOM:  # the architecture does not have this call
        _check(f"the rule for {name}", result)


def _check(what: str, result: int) -> None:
    if result < 0:
        raise LayerMissing(f"{what} failed: {os.strerror(-result)}")


def _comparison() -> Any:
    import ctypes

    class Comparison(ctypes.Structure):
        _fields_ = (
            ("argument", ctypes.c_uint),
            ("operator", ctypes.c_int),
            ("first", ctypes.c_uint64),
            ("second", ctypes.c_uint64),
        )

    return Comparison


def _prepared() -> Any:
    import ctypes

    lib = library(_NAME)
    lib.seccomp_init.restype = ctypes.c_void_p
    lib.seccomp_init.argtypes = [ctypes.c_uint32]
    lib.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    lib.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_void_p,
    ]
    lib.seccomp_load.argtypes = [ctypes.c_void_p]
    lib.seccomp_release.argtypes = [ctypes.c_void_p]
    lib.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    return lib
