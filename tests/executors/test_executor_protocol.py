"""Messages, and a parent that does not trust them."""

from __future__ import annotations

import subprocess
import time

import pytest

from rpl.errors import PrimitiveError, RetrieverError
from rpl.executors import protocol
from rpl.executors.base import ExecutionLimits
from rpl.executors.pool import Worker, WorkerGone, WorkerTimeout
from rpl.executors.protocol import decode, encode, pack_passages
from rpl.executors.service import LibraryService, ServiceTimeout
from rpl.executors.session import Session
from rpl.types import Passage

CALL = {"type": "call", "name": "bm25", "args": {"query": "q", "k": 2}, "line": 1, "journal": []}
DONE = {"type": "done", "error": None, "fuel": 3, "journal": []}


class FakeWorker:
    """Sends the given messages, whatever it is sent."""

    def __init__(self, *messages):
        self.messages, self.sent = list(messages), []

    def send(self, message, deadline):
        self.sent.append(message)

    def receive(self, deadline):
        return self.messages.pop(0)


def session(library, *messages, **limits):
    made = Session(FakeWorker(*messages), LibraryService(library, 0), ExecutionLimits(**limits))
    made.run("source", "q")
    return made


def test_messages_survive_the_round_trip():
    message = {"text": 'line\nbreak é \ud800 "', "n": 1.5, "x": [None, True]}
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == message


@pytest.mark.parametrize("line", [b"[1]", b"{", b"", b"\x80\x04K\x01."])
def test_what_is_no_message_is_refused(line):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own errors are ValueErrors
        decode(line)


def test_scores_of_any_number_type_can_be_sent():
    numpy = pytest.importorskip("numpy")
    rows = pack_passages([Passage("a", "A", "x", numpy.float32(0.5), numpy.int64(3))])
    assert decode(encode({"passages": rows})) == {"passages": [["a", "A", "x", 0.5, 3]]}


def test_an_honest_worker_is_understood(library):
    journal = [{"text": "hi"}, {"passage": "p1"}, {"call": "unique", "args": {}, "result_ids": ["p0"], "line": 2}]
    made = session(library, CALL, {**DONE, "journal": journal})
    assert (made.error, made.died, made.fuel) == (None, False, 3)
    assert made.items == ["hi", library.passage(1, 0.5, 1)]
    assert [call.name for call in made.calls] == ["bm25", "unique"]


FORGERIES = {
    "unknown type": [{**DONE, "type": "root"}],
    "no journal": [{"type": "done", "error": None, "fuel": 3}],
    "no fuel": [{"type": "done", "error": None, "journal": []}],
    "error of a wrong type": [{**DONE, "error": "x"}],
    "unknown primitive": [{**CALL, "name": "close"}, DONE],
    "attribute of the library": [{**CALL, "name": "__class__"}, DONE],
    "arguments of a wrong type": [{**CALL, "args": "x"}, DONE],
    "a passage that was never fetched": [CALL, {**DONE, "journal": [{"passage": "p77"}]}],
    "a local call on passages that were never fetched": [
        {**DONE, "journal": [{"call": "fuse", "args": {}, "result_ids": ["p77"]}]}
    ],
    "a remote call in the journal": [{**DONE, "journal": [{"call": "bm25", "args": {}, "result_ids": []}]}],
    "unknown journal entry": [{**DONE, "journal": [{"what": 1}]}],
    "journal entry of a wrong type": [{**DONE, "journal": ["x"]}],
    "too many calls": [CALL] * 40 + [DONE],
    "too many items": [{**DONE, "journal": [{"text": "x"}] * 3000}],
    "too many local calls": [{**DONE, "journal": [{"call": "fuse", "args": {}, "result_ids": []}] * 40}],
}


@pytest.mark.parametrize("messages", FORGERIES.values(), ids=FORGERIES.keys())
def test_forged_messages_end_the_worker(library, messages):
    made = session(library, *messages)
    assert made.error.kind == "worker_died"
    assert made.retire


def test_more_passages_than_allowed_end_the_worker(library):
    assert session(library, CALL, CALL, CALL, DONE, passages=3).error.kind == "worker_died"
    assert session(library, CALL, CALL, DONE, passages=4).error is None


@pytest.fixture
def process():
    """A process in the place of a worker, made by a Python command."""
    made = []

    def make(code, monkeypatch):
        monkeypatch.setattr("rpl.executors.pool._MAIN", 'print(\'{"type": "ready"}\', flush=True)\n' + code)
        made.append(Worker({"type": "start"}))
        return made[-1]

    yield make
    for worker in made:
        worker.kill()


def test_a_worker_that_floods_is_cut_off(process, monkeypatch):
    monkeypatch.setattr("rpl.executors.pool.MAX_LINE_BYTES", 1 << 20)
    worker = process("while True: print('x' * 100000, end='')", monkeypatch)
    with pytest.raises(WorkerGone, match="too long"):
        worker.receive(time.monotonic() + 10)


def test_a_worker_that_stops_reading_does_not_hold_the_parent(process, monkeypatch):
    worker = process("import time; time.sleep(60)", monkeypatch)
    with pytest.raises(WorkerTimeout):
        worker.send({"text": "x" * 10_000_000}, time.monotonic() + 0.3)


def test_a_worker_that_talks_nonsense_is_refused(process, monkeypatch):
    worker = process("print('hello', flush=True); import time; time.sleep(60)", monkeypatch)
    with pytest.raises(WorkerGone, match="not JSON"):
        worker.receive(time.monotonic() + 10)


def test_a_worker_that_ends_says_how(process, monkeypatch):
    worker = process("raise SystemExit(7)", monkeypatch)
    with pytest.raises(WorkerGone, match="exit status 7"):
        worker.receive(time.monotonic() + 10)
    assert worker.kill() == ""
    assert worker.kill() == ""


def test_children_of_a_worker_are_killed_with_it(process, monkeypatch):
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '60']); print('{\"pid\": %d}' % p.pid, flush=True); p.wait()"
    )
    worker = process(code, monkeypatch)
    pid = worker.receive(time.monotonic() + 10)["pid"]
    worker.kill()
    for _ in range(50):
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
        if not state.strip() or state.startswith("Z"):
            return
        time.sleep(0.05)
    pytest.fail("the child is alive")


def far() -> float:
    return time.monotonic() + 10


def test_the_service_retries_retrieval_faults_only(library):
    library.faults = 2
    assert len(LibraryService(library, 2).call("bm25", {"k": 1}, far()).passages) == 1
    library.faults = 2
    with pytest.raises(RetrieverError):
        LibraryService(library, 1).call("bm25", {"k": 1}, far())
    calls = len(library.calls)
    with pytest.raises(PrimitiveError):
        LibraryService(library, 5).call("dense", {"k": 1}, far())
    assert len(library.calls) == calls + 1


def test_the_service_does_not_retry_past_the_deadline(library):
    library.faults = 100
    started = time.monotonic()
    with pytest.raises(RetrieverError):
        LibraryService(library, 50).call("bm25", {"k": 1}, started + 0.3)
    assert time.monotonic() - started < 0.6


def test_the_service_leaves_a_hanging_call_behind(library):
    service = LibraryService(library, 0)
    library.hang_s = 1.0
    with pytest.raises(ServiceTimeout):
        service.call("bm25", {"k": 1}, time.monotonic() + 0.1)
    library.hang_s = 0.0
    assert service.call("bm25", {"k": 1}, time.monotonic() + 0.8).passages
    service.close()


def test_the_bounds_are_in_order():
    assert protocol.MAX_PRINTED_CHARS * 12 < protocol.MAX_LINE_BYTES
