"""The process level: what a worker has, and what it could do if a program reached the interpreter."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rpl.executors.pool import Worker

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {"calls": 32, "passages": 400, "fuel": 20_000, "source_chars": 4_000}
START = {"type": "start", "wall_s": 5.0, "memory_mb": 128, "limits": LIMITS}


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "leak-me")
    worker = Worker(START)
    yield worker
    worker.kill()


def python(code: str) -> str:
    """Runs code in a fresh interpreter and returns what it printed last."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def hardened(code: str, sealed: bool) -> str:
    """Runs code in a fresh interpreter after hardening; returns the name of the exception, or `done`."""
    return python(
        "import os, socket, subprocess, sys, threading\n"
        "from rpl.executors.hardening import harden, install_audit_hook\n"
        "from contextlib import nullcontext\n"
        f"seal = install_audit_hook() if {sealed} else nullcontext\n"
        f"harden(64)\ncode = compile({code!r}, 'x', 'exec')\n"
        "try:\n    with seal():\n        exec(code)\n"
        "except BaseException as error:\n    result = type(error).__name__\n"
        "else:\n    result = 'done'\nprint(result)"
    )


def status(worker: Worker, field: str) -> str:
    lines = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(field + ":"))


def test_the_environment_is_scrubbed(worker):
    variables = Path(f"/proc/{worker.process.pid}/environ").read_bytes().decode()
    assert "SECRET" not in variables
    assert set(filter(None, variables.split("\0"))) == {"PYTHONHASHSEED=0", "PYTHONUTF8=1", "LC_ALL=C.UTF-8"}


def test_only_the_standard_streams_are_open(worker):
    assert sorted(p.name for p in Path(f"/proc/{worker.process.pid}/fd").iterdir()) == ["0", "1", "2"]


def test_resource_limits_are_set(worker):
    def limit(kind):
        return resource.prlimit(worker.process.pid, kind)

    assert limit(resource.RLIMIT_NOFILE) == (3, 3)
    assert limit(resource.RLIMIT_FSIZE) == (0, 0)
    assert limit(resource.RLIMIT_CORE) == (0, 0)
    assert limit(resource.RLIMIT_NPROC) == (0, 0)
    soft, hard = limit(resource.RLIMIT_AS)
    assert soft == hard < 1024 * 2**20
    assert status(worker, "NoNewPrivs") == "1"


def test_the_memory_limit_follows_the_setting(worker):
    larger = Worker({**START, "memory_mb": 228})
    difference = [resource.prlimit(w.process.pid, resource.RLIMIT_AS)[0] for w in (worker, larger)]
    larger.kill()
    assert (difference[1] - difference[0]) / 2**20 == pytest.approx(100, abs=8)


def test_the_processor_limit_is_renewed_for_each_program(worker):
    import time

    worker.send({"type": "job", "source": "x = 1", "question": "q"}, time.monotonic() + 5)
    worker.receive(time.monotonic() + 5)
    soft, _ = resource.prlimit(worker.process.pid, resource.RLIMIT_CPU)
    assert 5 < soft < 15


def test_the_worker_ends_with_its_parent(worker):
    worker.process.stdin.close()
    assert worker.process.wait(timeout=5) == 0


def test_the_worker_loads_nothing_heavy():
    code = "import json, sys, rpl.executors.worker\nprint(json.dumps(sorted(sys.modules)))"
    modules = set(json.loads(python(code)))
    heavy = {
        "torch",
        "numpy",
        "transformers",
        "faiss",
        "bm25s",
        "lightning",
        "pickle",
        "socket",
        "subprocess",
        "ctypes",
    }
    assert not modules & heavy
    assert "RestrictedPython" in modules
    outside = {m for m in modules if m.startswith("rpl.") and not m.startswith(("rpl.executors", "rpl.programs"))}
    assert outside <= {"rpl.errors", "rpl.types", "rpl.retrieval", "rpl.retrieval.base", "rpl.retrieval.fusion"}


def test_the_parents_side_loads_nothing_heavy():
    code = "import sys, rpl.executors.environment\nprint([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert python(code) == "[]"


ATTACKS = {
    "read a file": "open('/etc/hostname')",
    "read a file by descriptor": "os.open('/etc/hostname', os.O_RDONLY)",
    "open a socket": "socket.socket()",
    "make a pipe": "os.pipe()",
    "start a process": "subprocess.Popen(['true'])",
}


@pytest.mark.parametrize("code", ATTACKS.values(), ids=ATTACKS.keys())
def test_the_process_limits_stop_what_reaches_the_interpreter(code):
    assert hardened(code, sealed=False) in ("OSError", "BlockingIOError")


@pytest.mark.parametrize(
    "code",
    [
        *(code for code in ATTACKS.values() if "pipe" not in code),
        "import ctypes",
        "os.fork()",
        "os.system('true')",
        "os.kill(1, 0)",
        "os.listdir('/')",
        "compile('1', 'x', 'eval')",
        "eval('1')",
        "(lambda: 0).__code__",
        "sys.settrace(None)",
    ],
)
def test_the_audit_hook_stops_what_reaches_the_interpreter(code):
    assert hardened(code, sealed=True) in ("PermissionError", "OSError")


def test_the_attack_tests_can_fail():
    assert hardened("x = [1, 2]", sealed=True) == "done"
    assert hardened("compile('1', 'x', 'eval')", sealed=False) == "done"


def test_memory_is_really_capped():
    assert hardened("x = bytearray(32 * 2**20)", sealed=True) == "done"
    assert hardened("x = bytearray(96 * 2**20)", sealed=True) == "MemoryError"
