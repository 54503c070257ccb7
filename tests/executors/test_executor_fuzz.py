"""Random programs, legal and nearly legal: whatever they are, the answer is a trace that keeps every promise."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_fakes import FakeLibrary
from executors.fuzz_strategies import any_program, legal, nearly_legal
from executors.protocol_harness import CORPUS, check
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from patience import patience

from rpl.core.errors import ProgramError
from rpl.core.records import Trace, to_dict
from rpl.executors.base import ExecutionLimits
from rpl.executors.parent.sandbox import SandboxExecutor
from rpl.executors.runtime.compiling import compile_program

QUESTION = "Which city is larger, Lyon or Nice?"
KINDS = {"syntax", "forbidden", "runtime", "primitive", "timeout"} | {
    f"budget_{name}" for name in ("calls", "passages", "fuel", "size", "memory", "printed", "recursion", "source")
}
FUZZ_LIMITS = ExecutionLimits(wall_s=20.0, fuel=4_000, printed_tokens=200)

relaxed = settings(suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def executor() -> Iterator[SandboxExecutor]:
    made = SandboxExecutor(FUZZ_LIMITS, workers=2)
    made.attach(FakeLibrary())  # type: ignore[arg-type]
    yield made
    made.close()


def keeps_promises(trace: Trace) -> None:
    """What holds for every trace, whatever the program."""
    assert trace.infra_error is None
    assert trace.error is None or trace.error.kind in KINDS
    if trace.error is not None:
        assert 0 < len(trace.error.message) <= 500
        assert trace.error.line is None or 0 < trace.error.line <= trace.source.count("\n") + 1
        assert "0x" not in trace.error.message
        assert "/rpl/" not in trace.error.message
    assert trace.printed_tokens <= FUZZ_LIMITS.printed_tokens
    assert 0 <= trace.fuel <= FUZZ_LIMITS.fuel
    assert len(trace.calls) <= FUZZ_LIMITS.calls + 1
    assert set(trace.printed_ids) <= set(trace.fetched_ids)
    line = json.dumps({**to_dict(trace), "source": ""}, ensure_ascii=False, allow_nan=False)
    line.encode()  # a rollout can be written to a file


def without_seconds(trace: Trace) -> str:
    record = to_dict(trace)
    del record["seconds"]
    for call in record["calls"]:
        del call["seconds"]
    return json.dumps(record)


@settings(relaxed, max_examples=120)
@given(any_program)
def test_random_programs_keep_every_promise_and_repeat_themselves(executor: SandboxExecutor, source: str) -> None:
    first, second = executor.run_many([(source, QUESTION)] * 2)
    keeps_promises(first)
    assert without_seconds(first) == without_seconds(second)


@settings(relaxed, max_examples=150)
@given(st.one_of(nearly_legal(), st.text(max_size=80)))
def test_texts_are_refused_with_typed_errors_only(source: str) -> None:
    with contextlib.suppress(ProgramError):
        compile_program(source, 4_000)


@settings(relaxed, max_examples=50)
@given(legal)
def test_legal_programs_are_legal(source: str) -> None:
    compile_program(source, 4_000)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> int:
    own = os.getpid()
    count = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            count += int(status.read_text().rpartition(")")[2].split()[1]) == own
        except OSError:  # it ended meanwhile
            continue
    return count


def held() -> tuple[int, int, int]:
    return descriptors(), children(), threading.active_count()


def settles(expected: tuple[int, int, int]) -> bool:
    """Whether nothing more is held; a worker that is being replaced in the background may take a moment."""
    deadline = time.monotonic() + patience(60)
    # Fewer is fine: what other tests held goes meanwhile.
    while not all(now <= then for now, then in zip(held(), expected, strict=True)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def resident_kib() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def collect(strategy: st.SearchStrategy[str], number: int) -> list[str]:
    """Draws programs first, so that what Hypothesis keeps in memory is not counted against the executor."""
    programs: list[str] = []

    @settings(relaxed, max_examples=number, phases=[Phase.generate], database=None)
    @given(strategy)
    def draw(source: str) -> None:
        programs.append(source)

    draw()
    return programs


def run_all(executor: SandboxExecutor, programs: list[str]) -> None:
    for start in range(0, len(programs), 100):
        for trace in executor.run_many([(source, QUESTION) for source in programs[start : start + 100]]):
            keeps_promises(trace)


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")


@needs_proc
def test_random_programs_leave_no_descriptors_processes_or_threads(executor: SandboxExecutor) -> None:
    programs = collect(any_program, 100)
    run_all(executor, programs[:50])
    before = held()
    run_all(executor, programs)
    assert settles(before)
    executor.close()
    assert children() == before[1] - 2  # both workers ended


@needs_proc
@pytest.mark.slow
def test_many_random_programs_keep_every_promise_and_leave_nothing() -> None:
    programs = collect(any_program, 20_000)
    executor = SandboxExecutor(FUZZ_LIMITS, workers=2)
    executor.attach(FakeLibrary())  # type: ignore[arg-type]
    run_all(executor, programs[:1_000])
    before, kib = held(), resident_kib()
    run_all(executor, programs)
    assert settles(before)
    assert resident_kib() - kib < 5 * 1024
    executor.close()


UNDERSTOOD = {"repeated-key", "lone-surrogate", "surrogate-in-a-query", "too-many-passages", "two-messages-at-once"}
"""Inputs that are odd but within the protocol."""


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name)
def test_the_parent_reads_what_a_worker_writes(path: Path) -> None:
    session = check(path.read_bytes())
    died = session.error is not None and session.error.kind == "worker_died"
    assert died != (path.name.startswith("honest-") or path.name in UNDERSTOOD)


@settings(relaxed, max_examples=150)
@given(st.data())
def test_damaged_messages_break_no_promise(data: st.DataObject) -> None:
    seeds = sorted(CORPUS.iterdir())
    output = bytearray(data.draw(st.sampled_from(seeds)).read_bytes()[:4_000])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(output)))
        piece = data.draw(
            st.one_of(st.binary(max_size=4), st.sampled_from([b"\n", b"null", b"[]", b"{}", b"-1", b'"p1"']))
        )
        output[place : place + data.draw(st.integers(0, 8))] = piece
    check(bytes(output))


def test_the_harness_would_see_a_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    output = (CORPUS / "honest-search").read_bytes().replace(b'"fuel": 3', b'"fuel": 300')
    assert check(output).error is not None
    monkeypatch.setattr("rpl.executors.parent.requests.fuel", lambda value, limit: value)
    with pytest.raises(AssertionError):
        check(output)
