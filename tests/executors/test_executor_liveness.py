"""Every bomb is stopped in time, the pool is whole again, nothing leaks, and traces do not depend on where they ran."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import threading
import time
from pathlib import Path

import pytest
from patience import patience, wait_until

from rpl.core.records import Trace, to_dict
from rpl.executors.base import ExecutionLimits
from rpl.executors.parent.process import Worker
from rpl.executors.parent.sandbox import SandboxExecutor

WALL_S = 0.3
TOLERANCE_S = 5.0  # on a fast, idle machine; a bomb that nothing stops runs for hours
GOOD = "for p in bm25(question, k=2):\n    print(p)"

# Each would run for hours. With fuel without end only the deadline, the memory limit or a bound on values stops them.
BOMBS = {
    "while": "while True:\n    pass",
    "while with work": "n = 0\nwhile True:\n    n = (n * 31 + 7) % 1000003",
    "for over a growing list": "a = [1]\nfor x in a:\n    a.append(x)\n    a.pop()\n    a.append(x)",
    "nested loops": "for i in range(1000000):\n    for j in range(1000000):\n        pass",
    "comprehension": "x = [0 for i in range(1000000) for j in range(1000000) if False]",
    "sum": "x = sum(range(1000000)) + sum([sum(range(1000000)) for i in range(1000)])",
    "any": "x = [any([j < 0 for j in range(90000)]) for i in range(90000)]",
    "sort": "a = list(range(90000))\nwhile True:\n    a = sorted(a, key=lambda v: -v)",
    "key function": "x = max(range(1000000), key=lambda v: sum(range(v)))",
    "recursion": "def f(n):\n    return f(n - 1) + f(n - 2) if n > 1 else n\nprint(f(90))",
    "texts": "t = 'x' * 900000\nwhile True:\n    u = t.replace('x', 'y')",
    "splitting": "t = 'x ' * 90000\nwhile True:\n    u = t.split()",
    "joining": "t = ['x'] * 90000\nwhile True:\n    u = ' '.join(t)",
    "rendering": "t = ['x'] * 90000\nwhile True:\n    u = str(t)",
    "sets": "s = set(range(90000))\nwhile True:\n    s = s | set(range(90000))",
    "lists": "a = []\nfor i in range(90000):\n    a.append('x' * 900000 + str(i))",
    "nested lists": "a = [0]\nwhile True:\n    a = [a, a]",
    "printing": "while True:\n    print('')",
    "calls": "while True:\n    bm25(question, k=1)",
    "local calls": "a = bm25(question, k=10)\nwhile True:\n    a = unique(a)",
}
IN_TIME = {"timeout", "budget_printed", "budget_calls", "budget_memory", "budget_recursion", "budget_size"}


def canonical(trace: Trace) -> bytes:
    calls = tuple(dataclasses.replace(call, seconds=0.0, cached=False) for call in trace.calls)
    return json.dumps(to_dict(dataclasses.replace(trace, calls=calls, seconds=0.0))).encode()


@pytest.fixture(scope="module")
def bombed():
    from executor_fakes import FakeLibrary

    executor = SandboxExecutor(ExecutionLimits(wall_s=WALL_S, fuel=10**12, memory_mb=128), workers=1)
    executor.attach(FakeLibrary())
    executor.run(GOOD, "q")
    yield executor
    executor.close()


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_stopped_in_time_and_the_pool_is_whole_again(name, bombed):
    bombed.run(GOOD, "q")
    started = time.monotonic()
    trace = bombed.run(BOMBS[name], "q")
    assert time.monotonic() - started < WALL_S + patience(TOLERANCE_S)
    assert trace.infra_error is None
    assert trace.error is not None
    assert trace.error.kind in IN_TIME, trace.error
    assert bombed.run(GOOD, "q").printed_ids == ("p0", "p1")


def test_the_time_is_measured_at_all(bombed):
    started = time.monotonic()
    assert bombed.run(BOMBS["while"], "q").error.kind == "timeout"
    assert time.monotonic() - started >= WALL_S


def test_a_worker_that_was_killed_is_replaced_before_it_is_needed(bombed):
    bombed.run(BOMBS["while"], "q")
    wait_until(lambda: bombed._pool._idle, "a fresh worker")
    (worker,) = bombed._pool._idle
    assert worker.alive
    assert worker.programs == 0


def test_no_worker_stays_after_close_even_while_one_is_replaced(library):
    threads = set(threading.enumerate())
    executor = SandboxExecutor(ExecutionLimits(wall_s=0.2, fuel=10**12), workers=2)
    made = started_by(executor)
    executor.attach(library)
    executor.run_many([(BOMBS["while"], "q")] * 2)
    executor.close()
    wait_until(lambda: not set(threading.enumerate()) - threads, "the threads that replace workers")
    assert executor._pool._idle == []
    assert len(made) >= 2
    assert running(made) == 0


def started_by(executor) -> list[Worker]:
    """Returns the list of the workers that an executor starts from now on; other tests' may come and go."""
    made: list[Worker] = []
    new = executor._pool._new
    executor._pool._new = lambda: made.append(worker := new()) or worker
    return made


def running(workers: list[Worker]) -> int:
    return sum(worker.process.poll() is None for worker in workers)


def measure(executor, programs: int) -> tuple[float, int]:
    """Runs programs of all kinds; returns resident MiB and descriptors of this process."""
    kinds = [GOOD, "x = 1", "print(", "1 / 0", "import os", "print(unique(bm25(question, k=3)))", "print('x' * 100)"]
    for start in range(0, programs, 500):
        numbers = range(start, min(start + 500, programs))
        # every text is new, so that a cache of programs without bound would show
        traces = executor.run_many([(f"{kinds[n % len(kinds)]}\n# {n}", f"question {n}") for n in numbers])
        assert all(trace.infra_error is None for trace in traces)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    mib = pages * resource.getpagesize() / 2**20
    return mib, len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("programs", "growth_mib"),
    [(1_000, 3), pytest.param(10_000, 5, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_programs_in_a_row_leave_nothing_behind(programs, growth_mib, monkeypatch, library):
    monkeypatch.setattr(type(library), "calls", property(lambda self: [], lambda self, value: None), raising=False)
    monkeypatch.setattr("rpl.executors.parent.sandbox.RECYCLE_AFTER", 300)  # workers are replaced on the way, too
    executor = SandboxExecutor(workers=2)
    made = started_by(executor)
    executor.attach(library)
    before = measure(executor, 500)
    after = measure(executor, programs)
    assert len(made) > 2
    assert running(made) <= 2
    executor.close()
    assert running(made) == 0
    assert after[0] - before[0] < growth_mib
    assert after[1] <= before[1] + 4  # a worker more or less, of two descriptors each


PROGRAMS = [
    GOOD,
    "s = {p.id for p in bm25(question, k=30)} | {'x', 'y', 'z'}\nfor i in s:\n    print(i)\nprint(s)",
    "s = {None, 1, 2.5, 'a', (1, 'b'), True, -7}\nprint(s, list(s), sorted([str(v) for v in s]))",
    "d = {}\nfor p in bm25('a', k=9):\n    d[p.title] = len(p.text)\nprint(d, list(d.items()))",
    "print(set(bm25('a', k=20)))\nprint({(p.rank, p.id) for p in bm25('b', k=20)})",
    "print(fuse(bm25('a', k=5), rerank('b', bm25('c', k=5)), k=3))",
    "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(12), 1 / 3, 2 / 3 * 1000000, f'{0.1 + 0.2}')",
    "x = [1, 2, 3]\nprint(x[7])",
    "while True:\n    pass",
    "print(len, f, bm25)",
    "print(len, print, bm25, lambda x: x, zip([1]), enumerate([1]), range(3))",
    "bm25('a', k=1000)",
    "print('x' * 1000000)\nprint('y' * 1000000)",
    "a = {str(i) for i in range(200)}\nb = a - {'7'}\nprint(list(a | b)[:20], list(a ^ {'q'})[:20])",
    "read('nowhere')",
    "def g(n):\n    return g(n + 1)\ng(0)",
    "def h(n):\n    print(n)\n    return sorted([n + 1], key=lambda m: h(m))\nh(0)",
]


def test_traces_are_byte_equal_in_any_worker_and_order(library):
    def run(order: list[int], workers: int, before: int) -> dict[int, bytes]:
        executor = SandboxExecutor(workers=workers)
        executor.attach(library)
        executor.run_many([("x = [i for i in range(500)]", "q")] * before)
        traces = executor.run_many([(PROGRAMS[number], "who?") for number in order])
        executor.close()
        return {number: canonical(trace) for number, trace in zip(order, traces, strict=True)}

    straight = list(range(len(PROGRAMS)))
    first = run(straight, 1, 0)
    assert run(straight[::-1], 1, 3) == first
    mixed = straight.copy()
    random.Random(7).shuffle(mixed)
    assert run(mixed, 3, 10) == first
    assert len(set(first.values())) == len(PROGRAMS)


def test_hidden_state_would_be_seen(library):
    executor = SandboxExecutor(workers=1)
    executor.attach(library)
    first, second = executor.run("print(1)", "q"), executor.run("print(1)", "q")
    executor.close()
    assert canonical(first) == canonical(second)
    assert canonical(first) != canonical(dataclasses.replace(second, fuel=second.fuel + 1))
