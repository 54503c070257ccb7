"""Hostile Python inside a hardened worker: what each layer stops alone, and that all of them hold together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
from patience import patience
from raw_worker import RAW

from rpl.core.errors import ConfigError
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.executors.base import ExecutionLimits
from rpl.executors.isolation import landlock
from rpl.executors.isolation.kernel import LayerMissing
from rpl.executors.isolation.layers import LAYERS, missing, unknown
from rpl.executors.parent import process as process_module
from rpl.executors.parent.pool import WorkerPool
from rpl.executors.parent.process import Worker
from rpl.executors.parent.sandbox import SandboxExecutor
from rpl.executors.parent.service import LibraryService
from rpl.executors.parent.session import Session

START = {
    "type": "start",
    "wall_s": 5.0,
    "memory_mb": 64,
    "limits": {"calls": 32, "passages": 400, "fuel": 20_000, "source_chars": 4_000},
}
KERNEL_LAYERS = ("no_new_privileges", "resource_limits", "namespaces", "landlock", "seccomp")

READ_MEMORY = """
buf = ctypes.create_string_buffer(8)
vec = (ctypes.c_void_p * 2)(ctypes.addressof(buf), 8)
assert libc.process_vm_readv(VICTIM, vec, 1, vec, 1, 0) >= 0 or errno() == 14, errno()
"""
MAKE_EXECUTABLE = """
buf = mmap.mmap(-1, 4096)
at = ctypes.addressof(ctypes.c_char.from_buffer(buf))
assert libc.mprotect(ctypes.c_void_p(at), 4096, 5) == 0
"""
# Name -> code, and the layers that stop it alone. Each raises where it is stopped.
ATTACKS = {
    "open a file": ("open('/etc/passwd').read()", "resource_limits namespaces landlock seccomp"),
    "open a file by descriptor": (
        "os.open('/etc/passwd', os.O_RDONLY)",
        "resource_limits namespaces landlock seccomp",
    ),
    "write a file": ("open(TARGET, 'w').write('x')", "resource_limits namespaces landlock seccomp"),
    "list a folder": ("assert os.listdir('/')", "namespaces landlock seccomp resource_limits"),
    "look at a file": ("os.stat('/etc/passwd')", "namespaces seccomp"),
    "read the parent's environment": (
        "open(f'/proc/{os.getppid()}/environ').read()",
        "resource_limits namespaces landlock seccomp",
    ),
    "read the parent's memory through /proc": (
        "open(f'/proc/{os.getppid()}/mem', 'rb')",
        "resource_limits namespaces landlock seccomp",
    ),
    "read another process's memory": (READ_MEMORY, "namespaces landlock seccomp"),
    "trace another process": ("assert libc.ptrace(16, VICTIM, 0, 0) == 0", "namespaces landlock seccomp"),
    "signal the parent": ("os.kill(os.getppid(), 0)", "landlock seccomp"),
    "signal everything": ("os.kill(-1, 0)", "seccomp"),
    "connect by TCP": (
        "s = socket.socket()\ns.settimeout(2)\ns.connect(SERVER)",
        "resource_limits namespaces landlock seccomp",
    ),
    "connect to a socket of the system": (
        "s = socket.socket(socket.AF_UNIX)\ns.connect(LOCAL)",
        "resource_limits namespaces landlock seccomp",
    ),
    "make a socket": ("socket.socket()", "resource_limits seccomp"),
    "make a pipe": ("os.pipe()", "resource_limits seccomp"),
    "copy a descriptor": ("os.dup(1)", "resource_limits seccomp"),
    "fork": ("if os.fork() == 0:\n    os._exit(0)", "seccomp"),
    "start a program": ("os.execv('/bin/true', ['true'])", "namespaces landlock seccomp"),
    "start a program beside": ("subprocess.run(['/bin/true'])", "resource_limits namespaces landlock seccomp"),
    "start a thread": ("threading.Thread(target=int).start()", "seccomp"),
    "map code": ("mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)", "seccomp"),
    "make memory executable": (MAKE_EXECUTABLE, "seccomp"),
    "raise the memory limit": ("resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))", "seccomp"),
    "become another user": ("os.setuid(65534)", "namespaces seccomp"),
    "write to another descriptor": ("os.write(3, b'x')", ""),
    "write to the error stream": ("os.write(2, b'x')", ""),
    "allocate": ("bytearray(256 * 2**20)", "resource_limits"),
}
# Without any layer these fail all the same: the parent leaves no such descriptor open, or the test is not root.
ALWAYS = {"write to another descriptor", "write to the error stream"}
ROOT_ONLY = {"raise the memory limit", "become another user", "read the parent's memory through /proc"}


def run(worker: Worker, source: str, question: str = "", wall_s: float = 5.0) -> Session:
    session = Session(worker, LibraryService(None), ExecutionLimits(wall_s=wall_s))
    session.run(source, question)
    return session


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """The code that names what is attacked: a server, a process of the same user, and a file."""
    target = tmp_path_factory.mktemp("attacked") / "file"
    victim = subprocess.Popen(["sleep", "600"])
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0rpl-attack-{os.getpid()}")
        local.listen()
        names = (tcp.getsockname(), victim.pid, str(target), f"\0rpl-attack-{os.getpid()}")
        yield f"SERVER, VICTIM, TARGET, LOCAL = {names!r}\n"
    victim.kill()
    victim.wait()


@pytest.fixture(scope="module")
def workers():
    """One worker for each set of layers; made when first asked for, again after a death."""
    made: dict[tuple[str, ...], Worker] = {}

    def get(*only: str) -> Worker:
        if only in made and not made[only].alive:
            made.pop(only).kill()
        if only not in made:
            made[only] = Worker({**START, "only": only}, RAW)
            assert not missing(made[only].layers, only)
        return made[only]

    yield get
    for worker in made.values():
        worker.kill()


@pytest.fixture(scope="module")
def hardened():
    worker = Worker(START, RAW)
    yield worker
    worker.kill()


def test_all_layers_hold_here_or_say_why(hardened):
    assert set(hardened.layers) == set(LAYERS)
    for name, reason in hardened.layers.items():
        assert reason is None or len(reason) > 5, name


def needs(worker: Worker, *names: str) -> None:
    if missing(worker.layers, names):
        pytest.skip(missing(worker.layers, names))


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hardened_worker_stops(name, hardened, targets):
    needs(hardened, *KERNEL_LAYERS)
    session = run(hardened, targets + ATTACKS[name][0])
    assert session.error is not None
    assert session.error.kind == "runtime", session.error
    assert hardened.alive


@pytest.mark.parametrize("layer", KERNEL_LAYERS[1:])
def test_each_layer_alone_stops_what_it_is_for(layer, workers, targets, hardened):
    needs(hardened, layer)
    for name, (code, stopped_by) in ATTACKS.items():
        if layer in stopped_by.split():
            session = run(workers("no_new_privileges", layer), targets + code)
            assert session.error is not None, f"{layer} let a program {name}"
            assert session.error.kind == "runtime", (name, session.error)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ALWAYS])
def test_without_layers_the_attacks_succeed(name, workers, targets):
    if os.getuid() != 0 and name in ROOT_ONLY:
        pytest.skip("only root can do this at all")
    session = run(workers("no_new_privileges"), targets + ATTACKS[name][0])
    if name == "start a program":
        assert "exit status 0" in session.error.message  # of the other program
    else:
        assert session.error is None, session.error


def test_privileges_cannot_be_gained(workers):
    source = "result = libc.prctl(39, 0, 0, 0, 0)"
    assert run(workers("no_new_privileges"), source).items == ["1"]


SEALED = {
    "import": "import json.tool",
    "open": "open('/etc/hostname')",
    "fork": "os.fork()",
    "shell": "os.system('true')",
    "signal": "os.kill(1, 0)",
    "list a folder": "os.listdir('/')",
    "socket": "socket.socket()",
    "start a process": "subprocess.Popen(['true'])",
    "compile": "compile('1', 'x', 'eval')",
    "evaluate": "eval('1')",
    "code of a function": "(lambda: 0).__code__",
    "trace": "sys.settrace(None)",
    "native call": "ctypes.CDLL(None)",
    "frames of all threads": "sys._current_frames()",
}


@pytest.mark.parametrize("name", SEALED)
def test_the_audit_hook_alone_stops(name, workers):
    worker = workers("no_new_privileges")
    message = run(worker, SEALED[name], "sealed").error.message
    assert message.startswith(("PermissionError: programs may not", "RuntimeError"))
    assert run(worker, "x = [1, 2]", "sealed").error is None


def test_native_calls_are_not_left_lying_around(hardened):
    # The worker's own reference is the test's; a program would find none in the table of modules.
    assert run(hardened, "result = [n for n in sys.modules if 'ctypes' in n]").items == ["[]"]


def test_memory_is_capped_by_the_setting(hardened):
    assert run(hardened, "x = bytearray(32 * 2**20)").error is None
    assert run(hardened, "x = bytearray(96 * 2**20)").error.message.startswith("MemoryError")


def test_processor_time_is_capped_without_a_parent():
    worker = Worker({**START, "only": ["resource_limits"], "wall_s": -1.5}, RAW)  # leaves one second of the grace
    assert "SIGXCPU" in run(worker, "while True: pass", wall_s=60.0).error.message
    worker.kill()


# What a worker that was taken over can say to the parent.
MESSAGES = {
    "garbage": "os.write(1, bytes(range(32, 127)) * 9 + b'\\n')",
    "binary": "os.write(1, b'\\x80\\x04K\\x01.\\n')",
    "a number": "os.write(1, b'1\\n')",
    "deep": "os.write(1, b'[' * 60_000 + b'\\n')",
    "deep and closed": "os.write(1, b'{\"type\": ' + b'[' * 20_000 + b']' * 20_000 + b'}\\n')",
    "no end": "while True: os.write(1, b'x' * 65536)",
    "nothing but commas": "for i in range(60): os.write(1, b'[],' * 20_000)\nos.write(1, b'\\n')",
    "a pickle in a text": "host.send({'type': 'done', 'error': None, 'fuel': 'cos\\nsystem\\n'})",
    "infinite fuel": 'os.write(1, b\'{"type": "done", "error": null, "fuel": Infinity, "journal": []}\\n\')',
    "a huge number": "os.write(1, b'{\"fuel\": ' + b'9' * 5000 + b'}\\n')",
    "a second start": "host.send({'type': 'ready', 'layers': {}})",
    "the end of output": "os.close(1)",
    "the end": "os._exit(7)",
    "a crash": "ctypes.string_at(0)",
    "an abort": "os.abort()",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_worker_that_was_taken_over_only_ends_itself(name):
    worker = Worker(START, RAW)
    started = time.monotonic()
    wall_s = patience(30)
    session = run(worker, MESSAGES[name], wall_s=wall_s)
    assert session.error.kind == "worker_died", session.error
    assert session.retire
    assert not session.interrupted
    assert not session.items
    assert time.monotonic() - started < wall_s / 2
    worker.kill()


# Messages that are well formed, as large as they can be, and would be kept.
FUSE = "{'call': 'fuse', 'args': {'lists': [[]] * %d, 'k': None}, 'result_ids': [], 'line': 1}"
HOARDS = {
    "empty lists": f"journal = [{FUSE % 300_000}]",
    "lists in many calls": f"journal = [{FUSE % 101}] * 30",
    "prints": "journal = [{'part': ''}] * 300_000",
    "lines": "journal = [{'text': ''}] * 3_000",
}


@pytest.mark.parametrize("name", HOARDS)
def test_a_worker_that_was_taken_over_cannot_fill_the_parent(name):
    worker = Worker(START, RAW)
    source = f"{HOARDS[name]}\nhost.journal = journal\nhost.send({{'type': 'done', 'error': None, 'fuel': 1}})"
    session = run(worker, source, wall_s=patience(10.0))
    worker.kill()
    assert session.error.kind == "worker_died", session.error
    assert len(session.calls) == 0
    assert len(session.items) <= 2_000


def test_ids_that_a_worker_sends_are_bounded_over_all_its_messages(library):
    args = "{'query': 'q', 'passages': ['p0'] * 9_999, 'k': None}"
    send = f"host.send({{'type': 'call', 'name': 'rerank', 'args': {args}, 'line': 1}})"
    search = "host.send({'type': 'call', 'name': 'bm25', 'args': {'query': 'q', 'k': 1}, 'line': 1})"
    read = "host.reader.readline()"
    source = f"{search}\n{read}\nfor i in range(9):\n    {send}\n    {read}"
    worker = Worker({**START, "memory_mb": 256}, RAW)
    session = Session(worker, LibraryService(library), ExecutionLimits(passages=10**6, wall_s=patience(10.0)))
    session.run(source, "")
    worker.kill()
    assert session.error.kind == "worker_died"
    assert "more passages than it may" in session.error.message
    assert len(session.calls) == 5


def test_a_message_that_takes_long_to_read_does_not_outlast_the_limit(monkeypatch):
    worker = Worker(START, RAW)
    decode = process_module.decode
    monkeypatch.setattr(process_module, "decode", lambda line: time.sleep(0.6) or decode(line))
    session = run(worker, "pass", wall_s=0.5)
    worker.kill()
    assert session.error.kind == "timeout"


@pytest.mark.parametrize("code", ["os.close(1)", "os.close(0)", "pass"])
def test_closing_pipes_buys_no_time(code):
    worker = Worker(START, RAW)
    started = time.monotonic()
    session = run(worker, f"{code}\nwhile True: pass", wall_s=0.3)
    worker.kill()
    assert time.monotonic() - started < 0.8  # waiting for the end of the process alone may take 1 s otherwise
    assert session.error.kind == ("worker_died" if code == "os.close(1)" else "timeout")


def test_an_answer_out_of_turn_does_not_reach_the_next_program():
    worker = Worker(START, RAW)
    forged = '{"type": "done", "error": null, "fuel": 1, "journal": [{"text": "forged"}]}\\n'
    assert run(worker, f"os.write(1, b'{forged}' * 2)").items == ["forged"]
    session = run(worker, "result = 'honest'")
    assert (session.items, session.error.kind) == ([], "worker_died")
    assert "out of turn" in session.error.message
    worker.kill()


def test_a_worker_ended_from_outside_is_told_from_one_that_ended_itself():
    worker = Worker(START, RAW)
    os.kill(worker.process.pid, signal.SIGKILL)
    assert run(worker, "x = 1").interrupted
    worker.kill()


# Switches


def test_a_layer_that_is_required_and_missing_is_an_error():
    pool = WorkerPool({**START, "only": ["resource_limits"]}, 1, 10, ("audit_hook", "landlock"), RAW)
    with pytest.raises(ConfigError, match=r"require_layers is not met .*landlock: left out by the test"), pool.lend():
        pass
    pool = WorkerPool({**START, "only": ["no_new_privileges", "landlock"]}, 1, 10, ("audit_hook", "landlock"), RAW)
    with pool.lend() as worker:
        needs(worker, "landlock")
        assert worker.alive
    pool.close()


def test_a_missing_layer_is_told_once(capsys):
    for _ in range(2):
        pool = WorkerPool({**START, "only": ["no_new_privileges", "namespaces"]}, 1, 10, main=RAW)
        pool.layers()
        pool.close()
    told = [line for line in capsys.readouterr().err.splitlines() if "left out by the test" in line]
    assert len(told) == 1
    assert "seccomp" in told[0]


def test_unknown_layers_are_refused():
    assert unknown(["seccomp", "landlock"]) == ""
    with pytest.raises(ConfigError, match=r"environment.require_layers: 'sandbox' is not among audit_hook"):
        EnvironmentConfig(require_layers=("seccomp", "sandbox"))
    with pytest.raises(ConfigError, match="require_layers"):
        SandboxExecutor(require_layers=["x"])


def test_the_environment_requires_layers_when_it_starts(monkeypatch, library):
    # Nothing can be required that a worker does not report.
    monkeypatch.setattr("rpl.executors.parent.process.Worker.layers", {"seccomp": "not on this kernel"}, raising=False)
    monkeypatch.setattr("rpl.executors.parent.pool.Worker", FakeWorker)
    environment = Environment(EnvironmentConfig(require_layers=("seccomp",)), library)
    with pytest.raises(ConfigError, match="seccomp: not on this kernel"):
        _ = environment.executor
    assert Environment(EnvironmentConfig(), library).sandbox.layers() == {"seccomp": "not on this kernel"}


class FakeWorker:
    layers: ClassVar = {"seccomp": "not on this kernel"}
    killed = False
    programs = 0
    alive = True

    def __init__(self, start, main):
        pass

    def kill(self):
        self.killed = True


def test_no_capability_is_left_even_where_namespaces_are_not_allowed():
    code = (
        "import rpl.executors.isolation.namespaces as n\n"
        "n._PLACE = b'/no/such/folder'\n"
        "try:\n    n.enter()\nexcept n.LayerMissing as error:\n    print(error)\n"
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith(('CapPrm', 'CapEff'))])\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(["0" * 16] * 2)
    assert "failed" in done.stdout.splitlines()[0]


def test_the_doctor_lists_the_layers(monkeypatch):
    from rpl.cli.commands.doctor import _sandbox_layers

    report = dict.fromkeys(LAYERS) | {"seccomp": "libseccomp.so.2 cannot be loaded"}
    monkeypatch.setattr(SandboxExecutor, "layers", lambda self: report)
    findings = {finding.layer: finding for finding in _sandbox_layers()}
    assert list(findings) == [f"sandbox {name}" for name in LAYERS]
    assert findings["sandbox landlock"].status == "ok"
    assert findings["sandbox seccomp"].status == "missing"
    assert "libseccomp2" in findings["sandbox seccomp"].advice


def test_a_step_that_fails_is_reported_and_the_others_are_taken():
    from rpl.executors.isolation.hardening import put_up

    taken = []

    def fails():
        raise LayerMissing("no such call")

    report = put_up({"seccomp": fails, "landlock": lambda: taken.append(1)})
    assert report == {"seccomp": "no such call", "landlock": None}
    assert taken == [1]


def test_a_kernel_without_landlock_says_so(monkeypatch):
    monkeypatch.setattr(landlock, "_CREATE_RULESET", 9_999)
    with pytest.raises(LayerMissing, match="not implemented"):
        landlock.version()
