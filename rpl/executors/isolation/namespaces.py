"""Namespaces: a worker sees no network, no file system, and holds no capability.

A new user namespace maps no user, so that even a worker of root is nobody to the rest of the system. The network
namespace has no interface; the root of the mount namespace is an empty, read-only file system. Needs a process with one
thread. See namespaces(7), user_namespaces(7), capabilities(7). Standard library only: the worker imports this file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count

from rpl.executors.isolation.kernel import PR_CAPBSET_DROP, LayerMissing, call

_CLONE_NEWNS = 0x0002_0000
_CLONE_NEWUTS = 0x0400_0000
_CLONE_NEWIPC = 0x0800_0000
_CLONE_NEWUSER = 0x1000_0000
_CLONE_NEWNET = 0x4000_0000
_CLONE_NEWCGROUP = 0x0200_0000
_SPACES = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWCGROUP

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_CAPABILITY_VERSION_3 = 0x2008_0522
_PLACE = b"/proc"
"""Where the empty root is mounted; any folder does, and this one is there on every Linux."""


def enter(empty_root: bool = True) -> None:
    """Moves this process into namespaces of its own and takes its capabilities away.

    Args:
        empty_root: Whether it gets an empty file system. A process that has to start another one later cannot.

    Raises:
        LayerMissing: The kernel or its settings do not allow it; the process may have entered some of them. It has no
            capabilities all the same.
    """
    try:
        call("unshare", _SPACES if empty_root else _SPACES & ~_CLONE_NEWNS)
        if empty_root:
            _empty_root()
    finally:
        _drop_capabilities()  # those of the new namespace, or those that root had all along


def _empty_root() -> None:
    call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    call("mount", b"none", _PLACE, b"tmpfs", flags, b"size=4k,mode=555")
    call("chroot", _PLACE)
    os.chdir("/")
    if os.listdir("/"):
        raise LayerMissing("the root folder of the new namespace is not empty")


def _drop_capabilities() -> None:
    import ctypes

    with suppress(LayerMissing):  # ends with the first that the kernel does not know, or that is not ours to drop
        for number in count():
            call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    call("capset", header, (ctypes.c_uint32 * 6)())
