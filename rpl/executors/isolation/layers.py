"""The layers that a worker process puts around itself, by name.

A worker tries each, says in its first message which hold and why the others do not, and goes on without those: what
one machine does not offer must not keep a laptop from running. `environment.require_layers` makes a missing one an
error, and `rpl doctor` lists them. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LAYERS: dict[str, str] = {
    "audit_hook": "the interpreter refuses to open, import, connect, compile and start while a program runs",
    "no_new_privileges": "nothing that the process starts can gain privileges",
    "resource_limits": "memory, processor time, files, processes and core dumps are limited",
    "namespaces": "no network, an empty file system, no capabilities, no user",
    "landlock": "no file can be opened, no TCP port used, no other process signalled",
    "seccomp": "the kernel refuses all system calls but those for computing, reading jobs and writing answers",
}
"""What each layer does, from the innermost outwards."""

ADVICE: dict[str, str] = {
    "resource_limits": "Linux limits memory too; elsewhere only the bounds on values do",
    "namespaces": "needs Linux with user namespaces for this user (sysctl user.max_user_namespaces; in a container, a "
    "profile that allows unshare and mount)",
    "landlock": "needs Linux 5.13 or newer with landlock among the security modules (boot parameter lsm=)",
    "seccomp": "needs Linux and libseccomp (apt install libseccomp2)",
}
"""What to do where a layer does not hold."""

Report = Mapping[str, str | None]
"""For each layer `None` where it holds, or why it does not."""


def missing(report: Report, names: Sequence[str]) -> str:
    """Returns in words which of the named layers do not hold, and why; empty where all do."""
    absent = [(name, report.get(name, "the worker does not report it")) for name in names]
    return "; ".join(f"{name}: {reason}" for name, reason in absent if reason is not None)


def unknown(names: Sequence[str]) -> str:
    """Returns what is wrong with a list of names of layers; empty where all are known."""
    wrong = [name for name in names if name not in LAYERS]
    return f"{', '.join(map(repr, wrong))} is not among {', '.join(LAYERS)}" if wrong else ""
