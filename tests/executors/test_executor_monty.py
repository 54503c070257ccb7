"""The Monty worker: its two processes and what they give up, how they end, and programs that get past the grammar."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_monty")

from executor_fakes import FakeLibrary
from raw_child import RAW_CHILD

from rpl.core.errors import ConfigError, MissingDependencyError
from rpl.core.records import Passage
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.executors.base import ExecutionLimits
from rpl.executors.isolation.layers import LAYERS, missing
from rpl.executors.monty import runner as monty_runner
from rpl.executors.monty.executor import MontyExecutor
from rpl.executors.monty.runner import ChildGoneError, MontyRunner, binary
from rpl.executors.monty.source import MontySource, instrument
from rpl.executors.parent.process import Worker
from rpl.executors.parent.service import LibraryService
from rpl.executors.parent.session import Session
from rpl.executors.runtime.primitives import Host, ProgramLimits

LIMITS = ExecutionLimits(wall_s=10.0)


@pytest.fixture
def library() -> FakeLibrary:
    return FakeLibrary()


@pytest.fixture
def executor(library: FakeLibrary) -> Iterator[MontyExecutor]:
    made = MontyExecutor(LIMITS, workers=1)
    made.attach(library)  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.fixture(scope="module")
def steady() -> Iterator[MontyExecutor]:
    """One executor for the tests that only look."""
    made = MontyExecutor(LIMITS, workers=1)
    made.attach(FakeLibrary())  # type: ignore[arg-type]
    yield made
    made.close()


def lines(path: Path) -> dict[str, str]:
    return dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)


def processes(session: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def pids(executor: MontyExecutor) -> tuple[int, int]:
    with executor._pool.lend() as worker:
        own = worker.process.pid
    (child,) = set(processes(own)) - {own}
    return own, child


def test_the_layers_hold_or_say_why(steady: MontyExecutor) -> None:
    layers = steady.layers()
    assert set(layers) == set(LAYERS)
    assert all(reason is None or len(reason) > 5 for reason in layers.values())


def test_what_both_processes_gave_up_seen_from_outside(steady: MontyExecutor) -> None:
    absent = missing(steady.layers(), tuple(LAYERS))
    if absent:
        pytest.skip(absent)
    for pid, filters in zip(pids(steady), (2, 1), strict=True):
        proc = Path(f"/proc/{pid}")
        status = lines(proc / "status")
        assert status["NoNewPrivs"].strip() == "1"
        assert (status["Seccomp"].strip(), status["Seccomp_filters"].strip()) == ("2", str(filters))
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
        for space in ("net", "user", "ipc"):
            assert (proc / "ns" / space).readlink() != Path(f"/proc/self/ns/{space}").readlink()
        limits = (proc / "limits").read_text()
        for name, value in {"file size": 0, "core file size": 0, "processes": 0}.items():
            assert f"Max {name}".ljust(26) + str(value).ljust(21) + str(value) in limits
        assert "Max address space         unlimited" not in limits
    environment = (proc / "environ").read_bytes()
    assert environment == b""
    assert {path.name for path in (proc / "fd").iterdir()} <= {"0", "1", "2"}


ATTACKS = {
    "open a file": "open('/etc/passwd').read()",
    "write a file": "open('/tmp/rpl-attack', 'w').write('x')",
    "list a folder": "os.listdir('/')",
    "list the libraries": "os.listdir('/usr/lib')",
    "read the parent's environment": "open(f'/proc/{PARENT}/environ').read()",
    "trace another process": "assert libc.ptrace(16, PARENT, 0, 0) == 0",
    "signal the parent": "os.kill(PARENT, 0)",
    "connect by TCP": "socket.create_connection(SERVER, 1)",
    "connect to a socket of the system": "socket.socket(socket.AF_UNIX).connect('\\0rpl-attack-child')",
    "start a program": "os.execv('/bin/sh', ['sh', '-c', 'exit 0'])",
    "start an interpreter": "os.execv(sys.executable, [sys.executable, '-c', ''])",
    "become another user": "os.setuid(65534)",
    "mount": "assert libc.mount(b'none', b'/proc', b'tmpfs', 0, None) == 0",
    "enter a namespace": "assert libc.unshare(0x10000000) == 0",
    "load a filter for others": "assert libc.syscall(321, 0, 0, 0) >= 0",
}


@pytest.fixture(scope="module")
def taken_over() -> Iterator[Worker]:
    limits = {"calls": 32, "passages": 400, "fuel": 20_000, "source_chars": 4_000}
    worker = Worker({"type": "start", "wall_s": 5.0, "memory_mb": 64, "limits": limits}, RAW_CHILD)
    yield worker
    worker.kill()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_child_that_was_taken_over_cannot(name: str, taken_over: Worker) -> None:
    absent = missing(taken_over.layers, ("no_new_privileges", "namespaces", "landlock", "seccomp"))
    if absent:
        pytest.skip(absent)
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        local.bind("\0rpl-attack-child")
        local.listen()
        source = f"SERVER, PARENT = {tcp.getsockname()!r}, {os.getpid()}\n{ATTACKS[name]}"
        session = Session(taken_over, LibraryService(None, 0), LIMITS)  # type: ignore[arg-type]
        session.run(source, "")
    assert session.error is not None
    assert session.error.kind == "runtime"
    assert taken_over.alive


def test_processor_time_of_the_child_is_limited_anew_for_each_program(steady: MontyExecutor) -> None:
    for _ in range(2):
        steady.run("for i in range(9999):\n    pass", "q")
    _, child = pids(steady)
    soft, hard = resource.prlimit(child, resource.RLIMIT_CPU)
    assert LIMITS.wall_s < soft < LIMITS.wall_s + 10
    assert hard == resource.RLIM_INFINITY


def test_both_processes_end_with_the_executor(executor: MontyExecutor) -> None:
    both = pids(executor)
    executor.close()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in both) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in both)


def test_the_child_ends_when_the_worker_does(executor: MontyExecutor) -> None:
    worker, child = pids(executor)
    os.kill(worker, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while child in processes(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child not in processes(worker)
    assert executor.run("print(1)", "q").observation == "1"


def test_a_child_that_something_outside_killed_is_no_fault_of_the_program(
    executor: MontyExecutor, library: FakeLibrary
) -> None:
    _, child = pids(executor)
    library.hang_s = 0.5
    threading.Timer(0.2, os.kill, (child, signal.SIGKILL)).start()
    trace = executor.run("print(bm25(question, k=1))", "q")
    assert (trace.error, trace.infra_error, trace.printed_ids) == (None, None, ("p0",))
    assert pids(executor)[1] != child


def test_a_missing_package_names_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpl.executors.monty.executor.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'rpl\[monty\]'"):
        MontyExecutor()


def test_the_environment_chooses_the_executor(library: FakeLibrary) -> None:
    given: Any = library
    with Environment(EnvironmentConfig(workers=1, executor="monty"), library=given) as environment:
        assert isinstance(environment.sandbox, MontyExecutor)
        assert environment.sandbox.run("print(bm25(question, k=1))", "q").printed_ids == ("p0",)
    with pytest.raises(ConfigError, match=r"environment\.executor must be one of restricted, monty, got 'python'"):
        EnvironmentConfig(executor="python")  # type: ignore[arg-type]


class Recorder(Host):
    """Notes what a program does; a search gives two passages."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def call(self, name: str, args: dict[str, Any]) -> list[Passage]:
        self.log.append((name, args))
        return [Passage("p0", "A", "a"), Passage("p1", "B", "b")]

    def record(self, name: str, args: dict[str, Any], results: Any) -> None:
        self.log.append((name, args))

    def print_text(self, text: str) -> None:
        self.log.append(text)

    def print_passage(self, passage: Passage) -> None:
        self.log.append(passage.id)


@pytest.fixture(scope="module")
def runner() -> Iterator[MontyRunner]:
    made = MontyRunner(binary(), 64, 5.0)
    yield made
    made.close()


def run_raw(runner: MontyRunner, source: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Recorder]:
    """Runs a text as if the grammar had let it pass."""
    monkeypatch.setattr(monty_runner, "instrument", lambda source, limit: MontySource(source, ()))
    host = Recorder()
    outcome = runner.run(source, "q", ProgramLimits(4, 40, 1_000, 4_000), host)
    return outcome, host


PAST_THE_GRAMMAR = {
    "list a folder": ("import os\nprint(os.listdir('/'))", "forbidden"),
    "read a file": ("open('/etc/passwd').read()", "forbidden"),
    "read a file by path": ("from pathlib import Path\nPath('/etc/passwd').read_text()", "forbidden"),
    "read the environment": ("import os\nos.getenv('HOME')", "forbidden"),
    "import what is not there": ("import subprocess", "forbidden"),
    "call what is not there": ("_print_.__class__", "runtime"),
    "await": ("import asyncio\nasyncio.run(asyncio.sleep(1))", "forbidden"),
    "sleep": ("import time\ntime.sleep(1)", "forbidden"),
    "forge a passage": ("_print_([b'7'], {})", "runtime"),
    "forge a passage that is no number": ("_print_([b'x'], {})", "runtime"),
    "hand over what the host does not know": ("class A:\n    pass\n_print_({A(): 1}, {})", "runtime"),
    "call without the crossing": ("_bm25_(1, 2, 3)", "runtime"),
    "stop like the host": ("raise KeyboardInterrupt('stop')", "forbidden"),
    "leave": ("raise SystemExit(0)", "runtime"),
    "cheat with fuel": ("_burnt_ = -1000000\n'x'", None),
}


@pytest.mark.parametrize("name", PAST_THE_GRAMMAR)
def test_what_gets_past_the_grammar_meets_a_wall(
    name: str, runner: MontyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, kind = PAST_THE_GRAMMAR[name]
    outcome, host = run_raw(runner, source, monkeypatch)
    assert (outcome.error and outcome.error.kind) == kind
    assert outcome.fuel >= 0
    assert not [entry for entry in host.log if "root" in str(entry) or "etc" in str(entry)]


def test_a_worker_ends_by_the_signal_that_ended_its_child() -> None:
    assert ChildGoneError("crashed while waiting for a reply (signal: 9 (SIGKILL))").signal == signal.SIGKILL
    assert ChildGoneError("crashed while waiting for a reply (exit status: 1)").signal is None


def test_places_lead_back_to_the_lines_of_the_program() -> None:
    source = "hits = bm25(\n    question,\n    k=2)\n\nfor p in hits:\n    print(\n        p,\n        links(p))\n"
    made = instrument(source, 4_000)
    encoded = made.text.encode()
    at = {name: made.line_at(encoded.index(name.encode())) for name in ("_bm25_(", "_print_(", "_links_(")}
    assert at == {"_bm25_(": 1, "_print_(": 6, "_links_(": 8}
