"""What a worker process has and does not have; `test_executor_layers` tries what it could do with that."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patience

from rpl.executors.parent.process import Worker

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
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def status(worker: Worker, field: str) -> str:
    lines = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(field + ":"))


def test_the_environment_is_scrubbed(worker):
    variables = Path(f"/proc/{worker.process.pid}/environ").read_bytes().decode()
    assert "SECRET" not in variables
    assert set(filter(None, variables.split("\0"))) == {"PYTHONHASHSEED=0", "PYTHONUTF8=1", "LC_ALL=C.UTF-8"}


def test_only_the_two_pipes_are_open(worker):
    folder = Path(f"/proc/{worker.process.pid}/fd")
    assert sorted(p.name for p in folder.iterdir()) == ["0", "1"]
    assert {str(p.readlink()).partition(":")[0] for p in folder.iterdir()} == {"pipe"}


def test_the_parent_keeps_two_descriptors_a_worker(worker):
    folder = Path("/proc/self/fd")
    before = len(list(folder.iterdir()))
    another = Worker(START)
    assert len(list(folder.iterdir())) == before + 2
    another.kill()
    assert len(list(folder.iterdir())) == before


def test_it_runs_in_a_session_of_its_own(worker):
    assert os.getsid(worker.process.pid) == worker.process.pid != os.getsid(0)


def test_resource_limits_are_set(worker):
    def limit(kind):
        return resource.prlimit(worker.process.pid, kind)

    assert limit(resource.RLIMIT_NOFILE) == (2, 2)
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
    deadline = time.monotonic() + patience(60)
    worker.send({"type": "job", "source": "x = 1", "question": "q"}, deadline)
    worker.receive(deadline)
    soft, _ = resource.prlimit(worker.process.pid, resource.RLIMIT_CPU)
    assert 5 < soft < 15


def test_the_worker_ends_with_its_parent(worker):
    worker.process.stdin.close()
    assert worker.process.wait(timeout=patience(60)) == 0


def test_the_worker_loads_nothing_heavy():
    code = "import json, sys, rpl.executors.runtime.worker\nprint(json.dumps(sorted(sys.modules)))"
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
    assert outside <= {
        "rpl.core",
        "rpl.core.errors",
        "rpl.core.records",
        "rpl.retrieval",
        "rpl.retrieval.base",
        "rpl.retrieval.fusion",
    }


def test_the_parents_side_loads_nothing_heavy():
    code = "import sys, rpl.environment.environment\nprint([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert python(code) == "[]"
