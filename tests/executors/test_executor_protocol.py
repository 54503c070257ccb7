"""Messages, and a parent that does not trust them."""

from __future__ import annotations

import subprocess
import time

import pytest
from patience import patience, wait_until

from rpl.core.errors import PrimitiveError, RetrieverError
from rpl.core.records import Passage
from rpl.executors import protocol
from rpl.executors.base import ExecutionLimits
from rpl.executors.parent.process import Worker, WorkerGone, WorkerTimeout
from rpl.executors.parent.service import LibraryService, ServiceTimeout
from rpl.executors.parent.session import Session
from rpl.executors.protocol import decode, encode, pack_passages

CALL = {"type": "call", "name": "bm25", "args": {"query": "q", "k": 2}, "line": 1, "journal": []}
DONE = {"type": "done", "error": None, "fuel": 3, "journal": []}
UNIQUE = {"call": "unique", "args": {"passages": ["p0", "p0"]}, "result_ids": ["p0"], "line": 2}
FUSE = {"call": "fuse", "args": {"lists": [["p0"], ["p1", "p0"]], "k": None}, "result_ids": ["p0"], "line": 2}
FAILED = {"kind": "runtime", "message": "x", "line": 1}


def call(name="bm25", line=1, **args):
    return {"type": "call", "name": name, "args": args, "line": line, "journal": []}


def done(*journal, fuel=3, error=None):
    return {"type": "done", "error": error, "fuel": fuel, "journal": list(journal)}


class FakeWorker:
    """Sends the given messages, whatever it is sent."""

    def __init__(self, *messages):
        self.messages, self.sent = list(messages), []

    def send(self, message, deadline):
        self.sent.append(message)

    def processor_s(self):
        return None

    def receive(self, deadline):
        return self.messages.pop(0)


def session(library, *messages, **limits):
    made = Session(FakeWorker(*messages), LibraryService(library), ExecutionLimits(**limits))
    made.run("source", "q")
    return made


def test_messages_survive_the_round_trip():
    message = {"text": 'line\nbreak é \ud800 "', "n": 1.5, "x": [None, True]}
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == message


@pytest.mark.parametrize(
    "line",
    [
        *(b"[1]", b"{", b"", b"null", b"\x80\x04K\x01.", b"{'a': 1}", b'{"a": 1} {"a": 1}', '{"a": "é"}'.encode()),
        *(b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": ' + b"9" * 5_000 + b"}"),
        *(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
        b'{"a": [' + b"[]," * 700_000 + b"1]}",
        b'{"a": ["' + b"x" * 3_000_000 + b'"' + b',""' * 1_000_000 + b"]}",
        b'{"a": "' + b"x" * protocol.MAX_LINE_BYTES + b'"}',
    ],
    ids=lambda line: line[:20],
)
def test_what_is_no_message_is_refused(line):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own errors are ValueErrors
        decode(line)


def test_the_most_that_a_program_may_print_is_a_message():
    text = "\U0001f600" * protocol.MAX_PRINTED_CHARS
    assert decode(encode({"journal": [{"text": text}]}))["journal"][0]["text"] == text
    commas = "[,{" * (protocol.MAX_PRINTED_CHARS // 3) + '"\\'
    assert decode(encode({"journal": [{"text": commas}] * 3}))["journal"][2]["text"] == commas


def test_parsing_a_message_needs_little_memory():
    # The worst that passes: values that cost a parser many times their length.
    import tracemalloc

    line = b'{"a": [' + b"[]," * (protocol.MAX_STRUCTURE_BYTES // 3 - 10) + b"1]}"
    tracemalloc.start()
    decode(line)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80 * 2**20


def test_measuring_a_message_takes_time_in_proportion_to_its_length(monkeypatch):
    monkeypatch.setattr(protocol, "MAX_STRUCTURE_BYTES", 1_000)

    def seconds(line):
        started = time.process_time()
        with pytest.raises(ValueError):  # noqa: PT011 - json's own errors are ValueErrors
            decode(line)
        return time.process_time() - started

    for head, part in ((b'{"a":"', rb"\""), (b'{"a":"', rb"\\\""), (b'{"a":', b'"\\'), (b'"', b"\xff")):
        short, long = (min(seconds(head + part * number) for _ in range(3)) for number in (2_000, 32_000))
        assert long < 80 * short + 0.01, (head, part)  # 256 times where each part is read from each part on


def test_scores_of_any_number_type_can_be_sent():
    numpy = pytest.importorskip("numpy")
    rows = pack_passages([Passage("a", "A", "x", numpy.float32(0.5), numpy.int64(3))])
    assert decode(encode({"passages": rows})) == {"passages": [["a", "A", "x", 0.5, 3]]}


def test_an_honest_worker_is_understood(library):
    made = session(library, CALL, {**DONE, "journal": [{"text": "hi"}, {"passage": "p1"}, UNIQUE]})
    assert (made.error, made.interrupted, made.fuel) == (None, "", 3)
    assert made.items == ["hi", library.passage(1, 0.5, 1)]
    assert [call.name for call in made.calls] == ["bm25", "unique"]


FORGERIES = {
    "unknown type": [{**DONE, "type": "root"}],
    "type that is no text": [{**DONE, "type": ["call"]}],
    "no journal": [{"type": "done", "error": None, "fuel": 3}],
    "journal that is no list": [{**DONE, "journal": {"text": "x"}}],
    "no fuel": [{"type": "done", "error": None, "journal": []}],
    "fuel that is true": [done(fuel=True)],
    "fuel below zero": [done(fuel=-1)],
    "fuel above the budget": [done(fuel=20_001)],
    "fuel that is no whole number": [done(fuel=1.5)],
    "error of a wrong type": [done(error="x")],
    "error without a line": [done(error={"kind": "runtime", "message": "x"})],
    "error with more": [done(error={**FAILED, "more": 1})],
    "error of a long kind": [done(error={**FAILED, "kind": "x" * 41})],
    "error of a kind that is a sentence": [done(error={**FAILED, "kind": "not a kind"})],
    "error with a long message": [done(error={**FAILED, "message": "x" * 1_001})],
    "error on line zero": [done(error={**FAILED, "line": 0})],
    "error on a line that is text": [done(error={**FAILED, "line": "1"})],
    "error on a line that is true": [done(error={**FAILED, "line": True})],
    "unknown primitive": [call("close", query="q", k=1), DONE],
    "attribute of the library": [call("__class__"), DONE],
    "name that is no text": [{**CALL, "name": ["bm25"]}, DONE],
    "local primitive as a call": [call("unique", passages=[]), DONE],
    "arguments of a wrong type": [{**CALL, "args": "x"}, DONE],
    "no arguments": [call(), DONE],
    "one argument too many": [call(query="q", k=1, key="x"), DONE],
    "query that is no text": [call(query=["q"], k=1), DONE],
    "query without end": [call(query="x" * 20_001, k=1), DONE],
    "k of zero": [call(query="q", k=0), DONE],
    "k above its bound": [call(query="q", k=101), DONE],
    "k that is true": [call(query="q", k=True), DONE],
    "k that is a fraction": [call(query="q", k=1.0), DONE],
    "no k": [call(query="q", k=None), DONE],
    "line that is text": [call(query="q", k=1, line="1"), DONE],
    "id that is no text": [call("read", passage_id=7), DONE],
    "id without end": [call("read", passage_id="x" * 1_001), DONE],
    "empty id": [call("read", passage_id=""), DONE],
    "reranking what was never fetched": [call("rerank", query="q", passages=["p77"], k=None), DONE],
    "reranking a text": [CALL, call("rerank", query="q", passages="p0", k=None), DONE],
    "reranking a list in a list": [CALL, call("rerank", query="q", passages=[["p0"]], k=None), DONE],
    "a passage that was never fetched": [CALL, done({"passage": "p77"})],
    "a passage with more": [CALL, done({"passage": "p0", "text": "forged"})],
    "a text that is a number": [done({"text": 1})],
    "a local call on passages that were never fetched": [done({**UNIQUE, "args": {"passages": ["p77"]}})],
    "a local call that gives what was never fetched": [CALL, done({**UNIQUE, "result_ids": ["p77"]})],
    "a local call with other arguments": [CALL, done({**UNIQUE, "args": {}})],
    "a local call with a list of lists": [CALL, done({**UNIQUE, "args": {"passages": [["p0"]]}})],
    "a fuse of no lists": [CALL, done({**FUSE, "args": {"lists": ["p0"], "k": None}})],
    "a fuse with a wrong k": [CALL, done({**FUSE, "args": {"lists": [["p0"]], "k": 1000}})],
    "a local call with more": [CALL, done({**UNIQUE, "seconds": 1})],
    "a remote call in the journal": [
        done({"call": "bm25", "args": {"query": "q", "k": 1}, "result_ids": [], "line": 1})
    ],
    "unknown journal entry": [done({"what": 1})],
    "journal entry of a wrong type": [done("x")],
    "too many calls": [CALL] * 40 + [DONE],
    "too many items": [done(*[{"text": "x"}] * 3000)],
    "too many items over all messages": [*[{**CALL, "journal": [{"text": "x"}] * 900}] * 3, DONE],
    "too much text": [done({"text": "x" * 1_000_001})],
    "too much text over all messages": [*[{**CALL, "journal": [{"text": "x" * 400_000}]}] * 3, DONE],
    "too many local calls": [CALL, done(*[UNIQUE] * 40)],
    "too many passages in local calls": [CALL, done(*[{**UNIQUE, "args": {"passages": ["p0"] * 20_000}}] * 3)],
}


@pytest.mark.parametrize("messages", FORGERIES.values(), ids=FORGERIES.keys())
def test_forged_messages_end_the_worker(library, messages):
    made = session(library, *messages)
    assert made.error.kind == "worker_died"
    assert made.retire


@pytest.mark.parametrize(
    "message",
    [
        call("read", passage_id="p7"),
        call("links", passage="p7", k=100),
        call("bm25", query="", k=1),
        call("bm25", query="x" * 2_000, k=100, line=None),
        call("rerank", query="q", passages=[], k=None),
        done(UNIQUE, FUSE, fuel=20_000),
        done(error=FAILED),
        done(error={"kind": "budget_fuel", "message": "x" * 1_000, "line": None}, fuel=0),
    ],
)
def test_what_an_honest_worker_sends_is_accepted(library, message):
    made = session(library, CALL, message, DONE)
    assert made.error is None or made.error.kind != "worker_died", made.error


def test_texts_that_no_file_accepts_are_cleaned(library):
    texts = [{"text": "a\ud800b"}, {"text": "\U0001f600"}]
    made = session(library, call(query="q\udfff", k=1), done(*texts, error={**FAILED, "message": "\udc00"}))
    assert made.items == ["a\ufffdb", "\U0001f600"]
    assert made.calls[0].args["query"] == library.calls[0][1]["query"] == "q\ufffd"
    assert made.error.message == "\ufffd"


def test_ids_that_are_kept_are_the_librarys_own(library):
    made = session(library, CALL, done({**UNIQUE, "args": {"passages": ["p" + "0"]}}))
    assert made.calls[1].args["passages"][0] is made.calls[0].result_ids[0]


def test_more_passages_than_allowed_end_the_worker(library):
    assert session(library, CALL, CALL, CALL, DONE, passages=3).error.kind == "worker_died"
    assert session(library, CALL, CALL, DONE, passages=4).error is None


@pytest.fixture
def process():
    """A process in the place of a worker, made by a Python command."""
    made = []

    def make(code, monkeypatch):
        # only after `start` came: what is there before the parent wrote is out of turn
        ready = 'input(); print(\'{"type": "ready", "layers": {}}\', flush=True)\n'
        monkeypatch.setattr("rpl.executors.parent.process._MAIN", ready + code)
        made.append(Worker({"type": "start"}))
        return made[-1]

    yield make
    for worker in made:
        worker.kill()


def test_a_worker_that_floods_is_cut_off(process, monkeypatch):
    monkeypatch.setattr("rpl.executors.parent.process.MAX_LINE_BYTES", 1 << 20)
    worker = process("while True: print('x' * 100000, end='')", monkeypatch)
    with pytest.raises(WorkerGone, match="too long"):
        worker.receive(far())


def test_a_worker_that_stops_reading_does_not_hold_the_parent(process, monkeypatch):
    worker = process("import time; time.sleep(60)", monkeypatch)
    with pytest.raises(WorkerTimeout):
        worker.send({"text": "x" * 10_000_000}, time.monotonic() + 0.3)


def test_a_worker_that_talks_nonsense_is_refused(process, monkeypatch):
    worker = process("print('hello', flush=True); import time; time.sleep(60)", monkeypatch)
    with pytest.raises(WorkerGone, match="not JSON"):
        worker.receive(far())


def test_a_worker_that_ends_says_how(process, monkeypatch):
    worker = process("raise SystemExit(7)", monkeypatch)
    with pytest.raises(WorkerGone, match="exit status 7"):
        worker.receive(far())
    assert worker.kill() == ""
    assert worker.kill() == ""


def test_children_of_a_worker_are_killed_with_it(process, monkeypatch):
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '60']); print('{\"pid\": %d}' % p.pid, flush=True); p.wait()"
    )
    worker = process(code, monkeypatch)
    pid = worker.receive(far())["pid"]
    worker.kill()

    def ended():
        ps = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return not ps.stdout.strip() or ps.stdout.startswith("Z")

    wait_until(ended, "the end of the child")


def far() -> float:
    return time.monotonic() + patience(60)


def test_the_service_makes_a_failed_call_once(library):
    library.faults = 1
    with pytest.raises(RetrieverError):
        LibraryService(library).call("bm25", {"k": 1}, far())
    assert len(library.calls) == 1
    assert len(LibraryService(library).call("bm25", {"k": 1}, far()).passages) == 1
    with pytest.raises(PrimitiveError):
        LibraryService(library).call("dense", {"k": 1}, far())


def test_the_service_refuses_an_answer_that_came_too_late(library):
    library.hang_s = 0.2
    with pytest.raises(ServiceTimeout):
        LibraryService(library).call("bm25", {"k": 1}, time.monotonic() + 0.1)
    assert LibraryService(library).call("bm25", {"k": 1}, far()).passages


def test_the_bounds_are_in_order():
    assert protocol.MAX_PRINTED_CHARS * 12 < protocol.MAX_LINE_BYTES
