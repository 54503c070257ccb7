"""A worker without a language: it runs any Python, as if the grammar and the guards had fallen.

The process is hardened as for programs. `only` in the start message names the layers that are put up; `question` is
`sealed` where the audit hook is to be active. The code finds modules that a program could never import, and whatever it
binds to `result` is printed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext

from rpl.core.records import TraceError
from rpl.executors.isolation import hardening, landlock, namespaces
from rpl.executors.runtime.primitives import Host, ProgramLimits
from rpl.executors.runtime.restricted import Outcome
from rpl.executors.runtime.worker import serve

RAW = "raw_worker"
"""The main module of such workers."""

MODULES = {m.__name__: m for m in (ctypes, mmap, os, resource, signal, socket, subprocess, sys, threading)}


def give_up(start):
    if "only" not in start:
        return hardening.harden(start["memory_mb"])
    size = hardening.address_space_bytes()
    steps = {
        "no_new_privileges": hardening.forbid_new_privileges,
        "namespaces": namespaces.enter,
        "landlock": landlock.restrict,
        "resource_limits": lambda: hardening.limit_resources(size, start["memory_mb"]),
        "seccomp": hardening.filter_calls(),
    }
    os.closerange(2, 4096)
    report = dict.fromkeys(steps, "left out by the test")
    return report | hardening.put_up({name: step for name, step in steps.items() if name in start["only"]})


def run_raw(source: str, question: str, limits: ProgramLimits, host: Host, seal) -> Outcome:
    scope = dict(MODULES, host=host, libc=ctypes.CDLL(None, use_errno=True), errno=ctypes.get_errno)
    try:
        code = compile(source, "<raw>", "exec")
        with seal() if question == "sealed" else nullcontext():
            exec(code, scope)
    except BaseException as error:
        return Outcome(TraceError("runtime", f"{type(error).__name__}: {error}"), 0)
    if "result" in scope:
        host.print_text(str(scope["result"]))
    return Outcome(None, 0)


def main() -> None:
    serve(run_raw, lambda: None, give_up)
