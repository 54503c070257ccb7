"""Which interpreter runs inside the worker processes.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Backend:
    """An interpreter of programs: the main module of its worker processes, and what that module imports."""

    name: str
    """What messages and logs call it."""
    module: str
    """Has `main()`, which takes over the standard streams and serves; see `worker.serve`."""
    packages: tuple[str, ...]
    """Top-level packages that it imports besides this one and the standard library."""
    install: str
    """The command that installs them, for the error where one is missing."""
    system_calls: tuple[str, ...] = ()
    """System calls that it needs besides those of `seccomp.ALLOWED`."""


RESTRICTED = Backend(
    name="restricted",
    module="rpl.executors.runtime.worker",
    packages=("RestrictedPython",),
    install="pip install 'RestrictedPython>=9.0,<10'",
)
"""CPython itself, behind the grammar and RestrictedPython's guards."""
