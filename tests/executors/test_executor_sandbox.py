"""The sandbox as a whole: one property a test, most of them hostile."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
import tracemalloc

import pytest
from patience import patience

from rpl.core.errors import ConfigError, ExecutorError
from rpl.core.records import Trace, to_dict
from rpl.executors.base import ExecutionLimits
from rpl.executors.parent import process as process_module
from rpl.executors.parent.process import Worker
from rpl.executors.parent.sandbox import SandboxExecutor
from rpl.executors.runtime import compiling
from rpl.executors.runtime.compiling import compile_program
from rpl.executors.runtime.methods import HANDLERS
from rpl.programs.grammar import BUILTINS

SEED_PROGRAM = "for p in bm25(question, k=1):\n    print(p)"
UNLIMITED = 10**12
HANGS = "while True:\n    pass"  # with unlimited fuel
EATS_MEMORY = "a = []\nfor i in range(15000):\n    a.append('x' * 900000 + str(i))"


def without_times(trace: Trace) -> Trace:
    calls = tuple(dataclasses.replace(call, seconds=0.0, cached=False) for call in trace.calls)
    return dataclasses.replace(trace, calls=calls, seconds=0.0)


def test_prints_passages_and_records_the_call(shared):
    trace = shared.run(SEED_PROGRAM, "who?")
    assert trace.observation == "[p0] Title 0: Text of passage 0."
    assert trace.printed_ids == ("p0",)
    assert trace.error is None
    assert trace.infra_error is None
    (call,) = trace.calls
    assert (call.name, call.args, call.result_ids, call.line) == ("bm25", {"query": "who?", "k": 1}, ("p0",), 1)


def test_traces_are_json_ready(shared):
    import json

    trace = shared.run("print(fuse(bm25('a', k=2), bm25('b', k=3), k=2))", "q")
    assert json.loads(json.dumps(to_dict(trace))) == to_dict(trace)


def test_equal_programs_give_equal_traces(make_executor):
    source = (
        "s = {p.id for p in bm25(question, k=30)} | {'x', 'y'}\nfor i in s:\n    print(i, s)\nprint(bm25('z', k=3))"
    )
    first, second = make_executor(), make_executor()
    traces = [without_times(e.run(source, "q")) for e in (first, first, second)]
    assert traces[0] == traces[1] == traces[2]
    assert traces[0] != without_times(first.run(source + "\nprint(1)", "q"))


def test_a_program_that_hangs_is_killed_promptly(make_executor):
    executor = make_executor(wall_s=0.5, fuel=UNLIMITED)
    executor.run("x = 1", "q")
    started = time.monotonic()
    trace = executor.run(HANGS, "q")
    assert 0.5 <= time.monotonic() - started < patience(30)  # it would run for hours
    assert trace.error.kind == "timeout"
    assert trace.infra_error is None
    assert trace.observation == "Error: the program ran longer than 0.5 s and was stopped"


def test_what_was_printed_before_a_call_survives_the_kill(make_executor):
    trace = make_executor(wall_s=1.0, fuel=UNLIMITED).run(
        "print('early')\nbm25('a', k=1)\nprint('late')\n" + HANGS, "q"
    )
    assert trace.observation.splitlines()[0] == "early"
    assert "late" not in trace.observation
    assert len(trace.calls) == 1


def test_the_worker_recovers_after_a_kill(make_executor):
    executor = make_executor(wall_s=0.5, fuel=UNLIMITED)
    executor.run(HANGS, "q")
    assert executor.run(SEED_PROGRAM, "q").printed_ids == ("p0",)


def test_memory_is_capped(make_executor):
    trace = make_executor(memory_mb=64, fuel=UNLIMITED).run(EATS_MEMORY, "q")
    assert trace.error.kind == "budget_memory"
    assert trace.error.line == 3


def test_the_memory_limit_is_what_capped_it(make_executor):
    source = EATS_MEMORY.replace("15000", "100")
    assert make_executor(memory_mb=256, fuel=UNLIMITED).run(source, "q").error is None
    assert make_executor(memory_mb=64, fuel=UNLIMITED).run(source, "q").error.kind == "budget_memory"


def test_the_worker_recovers_after_its_memory_ran_out(make_executor):
    executor = make_executor(memory_mb=64, fuel=UNLIMITED)
    executor.run(EATS_MEMORY, "q")
    assert executor.run(SEED_PROGRAM, "q").error is None


def test_an_endless_loop_runs_out_of_fuel(shared):
    trace = shared.run("while True:\n    pass", "q")
    assert (trace.error.kind, trace.error.line, trace.fuel) == ("budget_fuel", 1, 20_000)


def test_an_output_flood_is_bounded(shared):
    trace = shared.run("while True:\n    print('x' * 1000)", "q")
    assert trace.error.kind == "budget_printed"
    assert trace.printed_tokens <= 512


def test_an_observation_stays_within_its_tokens(make_executor):
    trace = make_executor(printed_tokens=30).run("print(bm25(question, k=20))", "q")
    assert trace.printed_tokens <= 30
    assert trace.printed_ids == ("p0", "p1")
    assert trace.omitted == 18
    assert trace.observation.endswith("\n(18 more did not fit)")


def test_tokens_are_counted_with_the_connected_tokenizer(make_executor):
    executor = make_executor(printed_tokens=40)
    executor.connect(len)  # one token a character
    trace = executor.run(SEED_PROGRAM + "\nprint('0123456789')", "q")
    assert trace.printed_tokens == len(trace.observation) <= 40
    assert trace.omitted == 2


def test_the_call_budget_has_its_own_error(make_executor):
    trace = make_executor(calls=3).run("for i in range(9):\n    bm25(str(i), k=1)", "q")
    assert (trace.error.kind, trace.error.line, len(trace.calls)) == ("budget_calls", 2, 3)


def test_local_primitives_count_as_calls(make_executor):
    trace = make_executor(calls=3).run("a = bm25('x', k=1)\nfor i in range(9):\n    a = unique(a)", "q")
    assert trace.error.kind == "budget_calls"
    assert [call.name for call in trace.calls] == ["bm25", "unique", "unique"]


def test_the_passage_budget_has_its_own_error(make_executor):
    trace = make_executor(passages=10).run("for i in range(9):\n    bm25(str(i), k=4)", "q")
    assert (trace.error.kind, len(trace.calls)) == ("budget_passages", 3)


def test_the_source_budget_has_its_own_error(make_executor):
    trace = make_executor(source_chars=20).run("x = 1 # " + "x" * 20, "q")
    assert trace.error.kind == "budget_source"
    assert make_executor(source_chars=40).run("x = 1 # " + "x" * 20, "q").error is None


def test_each_program_starts_clean(shared):
    assert shared.run("x = 1\ndef f():\n    return 1\nprint(x)", "q").observation == "1"
    for name in ("x", "f"):
        trace = shared.run(f"print({name})", "q")
        assert trace.error.message.startswith(f"NameError: name '{name}' is not defined; ")


def test_error_lines_are_those_of_the_text_as_written(shared):
    trace = shared.run("# a comment\n\nx = (1,\n     2)\n\nprint(x[7])", "q")
    assert trace.observation == "Error on line 6: IndexError: tuple index out of range"


def test_what_was_printed_before_an_error_is_seen(shared):
    trace = shared.run("print(bm25('a', k=1))\nprint(1 / 0)", "q")
    assert trace.printed_ids == ("p0",)
    assert trace.observation.splitlines()[-1] == "Error on line 2: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("print(", "syntax"),
        ("break", "syntax"),
        ("\0", "syntax"),
        ("x = '\ud800'", "syntax"),
        ("", "syntax"),
        ("x = " + "(" * 300 + ")" * 300, "syntax"),
        ("x = " + "-" * 3000 + "1", "syntax"),
        ("import os", "forbidden"),
        ("bm25('a').__class__", "forbidden"),
    ],
)
def test_bad_text_is_data(shared, source, kind):
    assert shared.run(source, "q").error.kind == kind


def test_primitive_errors_name_what_is_allowed(shared):
    trace = shared.run("x = 1\nbm25('a', k=1000)", "q")
    assert trace.error.kind == "primitive"
    assert trace.observation == "Error on line 2: bm25: k must be a whole number from 1 to 100, got 1000"


def test_the_librarys_refusals_reach_the_program(shared):
    trace = shared.run("x = 1\ndense('a')", "q")
    assert (trace.error.kind, trace.error.line) == ("primitive", 2)
    assert trace.error.message == "dense is not available in this library"
    assert trace.calls[0].result_ids == ()


def test_a_fault_voids_the_run(make_executor, library):
    library.faults = 1
    executor = make_executor()
    trace = executor.run("print('hello')\n" + SEED_PROGRAM, "q")
    assert trace.infra_error == "retrieval failed: index is gone"
    assert trace.error is None
    assert trace.observation == ""
    assert executor.run(SEED_PROGRAM, "q").infra_error is None


def test_a_hanging_primitive_voids_the_run_in_time(make_executor, library):
    library.hang_s = patience(60)
    executor = make_executor(wall_s=0.5)
    started = time.monotonic()
    trace = executor.run(SEED_PROGRAM, "q")
    assert time.monotonic() - started < library.hang_s / 2
    assert trace.infra_error.startswith("retrieval failed: bm25 gave no answer for ")
    library.hang_s = 0.0
    assert executor.run(SEED_PROGRAM, "q").error is None


def test_a_primitive_has_a_deadline_of_its_own(make_executor, library):
    library.hang_s = patience(60)
    executor = make_executor(wall_s=2 * library.hang_s, call_s=0.3)
    executor.run("x = 1", "q")
    trace = executor.run(SEED_PROGRAM, "q")
    assert trace.infra_error.startswith("retrieval failed: bm25 gave no answer for ")
    assert 0.3 <= trace.seconds < library.hang_s / 2
    library.hang_s = 0.6
    longer = make_executor(wall_s=patience(60), call_s=patience(30)).run(SEED_PROGRAM, "q")
    assert (longer.error, longer.infra_error) == (None, None)


def test_many_hanging_primitives_do_not_hold_the_others(make_executor, library):
    hang = threading.Event()
    answer = library.call
    limit = patience(60)
    library.call = lambda name, args: (hang.wait(limit) if args["query"] == "hang" else None, answer(name, args))[1]
    executor = make_executor(workers=2, call_s=0.2)
    jobs = [("bm25('hang')", "q"), (SEED_PROGRAM, "q")] * 4
    started = time.monotonic()
    traces = executor.run_many(jobs)
    assert time.monotonic() - started < patience(30)
    assert [trace.infra_error is None for trace in traces] == [False, True] * 4
    hang.set()
    assert executor.run(SEED_PROGRAM, "q").error is None


def test_many_slow_calls_are_the_programs_timeout(make_executor, library):
    library.hang_s = 0.2
    trace = make_executor(wall_s=1.0).run("for i in range(20):\n    bm25(str(i), k=1)", "q")
    assert trace.infra_error is None
    assert trace.error.kind == "timeout"


def test_a_bug_in_the_library_is_not_hidden(make_executor, library):
    library.call = lambda name, args: 1 / 0
    with pytest.raises(ZeroDivisionError):
        make_executor().run(SEED_PROGRAM, "q")


def test_a_worker_that_cannot_start_voids_the_run(make_executor, monkeypatch):
    monkeypatch.setattr(process_module, "_MAIN", "raise SystemExit('no such module')")
    trace = make_executor().run(SEED_PROGRAM, "q")
    assert "did not get ready: no such module" in trace.infra_error
    assert trace.error is None


def test_a_worker_that_was_killed_from_outside_is_no_fault_of_the_program(make_executor, library):
    executor = make_executor()
    executor.run("x = 1", "q")
    (worker,) = executor._pool._idle
    killed = []

    def kill_once(name, args):
        if not killed:
            killed.append(os.kill(worker.process.pid, signal.SIGKILL))
        return type(library).call(library, name, args)

    library.call = kill_once
    trace = executor.run(SEED_PROGRAM, "q")
    assert killed
    assert (trace.error, trace.printed_ids) == (None, ("p0",))


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM, 40]
)
def test_a_worker_that_any_signal_from_outside_ended_is_no_fault_of_the_program(make_executor, library, number):
    executor = make_executor()
    made = end_workers(executor, library, number)
    trace = executor.run(SEED_PROGRAM, "q")
    assert (trace.error, len(made)) == (None, 2)
    assert trace.infra_error.startswith("the sandbox was disturbed twice: it ended (")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGSYS, signal.SIGXCPU])
def test_a_worker_that_crashed_is_the_programs_fault(make_executor, library, number):
    executor = make_executor()
    made = end_workers(executor, library, number)
    trace = executor.run(SEED_PROGRAM, "q")
    assert (trace.error.kind, trace.infra_error, len(made)) == ("worker_died", None, 1)
    assert signal.Signals(number).name in trace.error.message


def end_workers(executor, library, number):
    """Ends each worker by a signal while retrieval serves it; returns the list of the workers that were lent."""
    made = []
    take = executor._pool._take
    executor._pool._take = lambda: made.append((worker := take()).process) or worker

    def end(name, args):
        os.kill(made[-1].pid, number)
        made[-1].wait()
        return type(library).call(library, name, args)

    library.call = end
    return made


def test_a_worker_that_was_killed_twice_voids_the_run(make_executor, library):
    executor = make_executor()

    def kill_always(name, args):
        for process in made:
            process.kill()
        return type(library).call(library, name, args)

    made = []
    take = executor._pool._take
    executor._pool._take = lambda: made.append((worker := take()).process) or worker
    library.call = kill_always
    trace = executor.run(SEED_PROGRAM, "q")
    assert trace.infra_error == "the sandbox was disturbed twice: it ended (SIGKILL)"
    assert (trace.error, trace.observation) == (None, "")
    assert len(made) == 2


def test_a_worker_that_was_stopped_is_no_fault_of_the_program(make_executor):
    executor = make_executor(wall_s=0.5)
    executor.run("x = 1", "q")
    (worker,) = executor._pool._idle
    os.kill(worker.process.pid, signal.SIGSTOP)
    trace = executor.run("print('honest')", "q")
    assert (trace.error, trace.infra_error, trace.observation) == (None, None, "honest")


def test_workers_that_are_always_stopped_void_the_run(make_executor):
    executor = make_executor(wall_s=0.5)
    take = executor._pool._take
    executor._pool._take = lambda: os.kill((worker := take()).process.pid, signal.SIGSTOP) or worker
    trace = executor.run("print('honest')", "q")
    assert trace.error is None
    assert trace.infra_error.startswith(
        "the sandbox was disturbed twice: a worker was stopped or starved: it had 0.0 s"
    )


def test_a_text_that_is_too_long_is_refused_without_a_worker(make_executor, monkeypatch):
    executor = make_executor(source_chars=4_000)
    monkeypatch.setattr(executor._pool, "_take", lambda: pytest.fail("a worker was asked for"))
    trace = executor.run("x = 1\n" * 1_000_000, "q")
    assert trace.error.kind == "budget_source"
    assert trace.observation == "Error: the program has 6,000,000 characters; the limit is 4,000"


def test_what_a_program_printed_does_not_hold_up_others(make_executor):
    executor = make_executor(workers=2)
    both = threading.Barrier(2, timeout=patience(60))
    marked = []

    def count(text):
        if "meet" in text and not marked.count(threading.get_ident()):
            marked.append(threading.get_ident())
            both.wait()  # both count at the same time, or this fails
        return len(text.split())

    executor.connect(count)
    traces = executor.run_many([("print('meet')", "q")] * 2)
    assert [trace.observation for trace in traces] == ["meet", "meet"]


def test_the_time_of_counting_tokens_is_part_of_the_seconds(make_executor):
    executor = make_executor()
    executor.connect(lambda text: time.sleep(0.2 * bool(text)) or 1)
    assert executor.run("print('a')", "q").seconds >= 0.2


def test_a_dead_idle_worker_is_replaced(make_executor):
    executor = make_executor()
    executor.run("x = 1", "q")
    os.kill(executor._pool._idle[0].process.pid, signal.SIGKILL)
    executor._pool._idle[0].process.wait()
    assert executor.run(SEED_PROGRAM, "q").error is None


def test_workers_are_reused_and_recycled(make_executor):
    pool = make_executor()._pool
    pool._recycle_after = 3
    pids = []
    for _ in range(4):
        with pool.lend() as worker:
            pids.append(worker.process.pid)
    assert pids[0] == pids[1] == pids[2] != pids[3]


def test_a_worker_that_was_used_up_is_replaced_ahead_of_time(make_executor):
    pool = make_executor()._pool
    pool._recycle_after = 1
    with pool.lend() as worker:
        first = worker.process.pid
    assert pool._idle == []
    pool.refill()
    pool.refill()  # nothing more is missing
    (idle,) = pool._idle
    assert idle.process.pid != first


def test_jobs_run_side_by_side_and_keep_their_order(make_executor, library):
    both = threading.Barrier(2, timeout=patience(60))
    answer = library.call
    library.call = lambda name, args: (both.wait(), answer(name, args))[1]  # one by one, nobody would come
    executor = make_executor(workers=2, wall_s=patience(60), call_s=patience(60))
    traces = executor.run_many([(f"bm25('a', k=1)\nprint(question, {i})", f"q{i}") for i in range(4)])
    assert [trace.observation for trace in traces] == [f"q{i} {i}" for i in range(4)]


def test_one_bad_job_does_not_disturb_the_others(make_executor):
    executor = make_executor(workers=2, wall_s=1.0, fuel=UNLIMITED)
    jobs = [(SEED_PROGRAM, "a"), (HANGS, "b"), ("1 / 0", "c"), (SEED_PROGRAM, "d")]
    traces = executor.run_many(jobs)
    kinds = [trace.error.kind if trace.error else None for trace in traces]
    assert kinds == [None, "timeout", "runtime", None]
    assert [trace.source for trace in traces] == [source for source, _ in jobs]


def test_no_jobs_are_no_traces(make_executor):
    assert make_executor().run_many([]) == []


def test_close_stops_the_workers_and_the_executor_can_go_on(make_executor):
    executor = make_executor()
    executor.run("x = 1", "q")
    (worker,) = executor._pool._idle
    executor.close()
    assert worker.process.returncode is not None
    assert executor.run(SEED_PROGRAM, "q").error is None


def test_a_dropped_executor_leaves_no_process(library):
    executor = SandboxExecutor(workers=1)
    executor.attach(library)
    executor.run("x = 1", "q")
    (worker,) = executor._pool._idle
    del executor
    assert worker.process.returncode is not None


def test_a_job_holds_the_program_and_the_question_only(make_executor, monkeypatch):
    sent = []
    send = Worker.send
    monkeypatch.setattr(
        Worker, "send", lambda self, message, deadline: (sent.append(message), send(self, message, deadline))[1]
    )
    make_executor().run(SEED_PROGRAM, "who?")
    (job,) = [message for message in sent if message["type"] == "job"]
    assert job == {"type": "job", "source": SEED_PROGRAM, "question": "who?"}
    assert {message["type"] for message in sent} == {"start", "job", "reply"}


def test_without_a_library_there_is_a_clear_error():
    with pytest.raises(ExecutorError, match="attach"):
        SandboxExecutor().run("x = 1", "q")


@pytest.mark.parametrize("arguments", [{"workers": 0}])
def test_bad_settings_are_refused(arguments):
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        SandboxExecutor(**arguments)


def test_every_primitive_works_through_the_pipes(shared):
    source = """
a = bm25(question, k=3)
b = rerank(question, a)
c = fuse(a, b, k=2)
d = links(a[0], k=2)
e = read('p9')
f = unique(a + d + [e])
g = rerank(question, [])
print([p.id for p in b], [p.id for p in c], len(d), e.id, len(f), g)
"""
    trace = shared.run(source, "q")
    assert trace.error is None, trace.error
    assert trace.observation == "['p2', 'p1', 'p0'] ['p0', 'p2'] 2 p9 4 []"
    assert [c.name for c in trace.calls] == ["bm25", "rerank", "fuse", "links", "read", "unique", "rerank"]
    assert [c.line for c in trace.calls] == [2, 3, 4, 5, 6, 7, 8]
    assert trace.fetched_ids == ("p0", "p1", "p2", "p9")


def test_a_line_that_print_did_not_end_is_continued(shared):
    source = "for w in ['a', 'b']:\n    print(w, end=' ')\nprint(bm25(question, k=1))\nprint('c', end=' ')\nprint('d')"
    assert shared.run(source, "q").observation == "a b \n[p0] Title 0: Text of passage 0.\nc d"
    error = shared.run("print('a', end='')\nbm25('x')\nprint('b', end='')\n1 / 0", "q").observation
    assert error == "ab\nError on line 4: ZeroDivisionError: division by zero"


BALLAST = "\nfor i in range(190):\n    a.append([0] * 100000)"  # more than half of the memory of a program


def test_what_a_program_held_in_circles_is_not_the_next_ones_burden(make_executor):
    executor = make_executor()
    alone = without_times(executor.run("a = []" + BALLAST, "q"))
    assert alone.error is None
    for circle in ("a = []\na.append(a)", "a = []\ndef f(n):\n    return f(n - 1) + len(a)"):
        assert executor.run(circle + BALLAST, "q").error is None
        assert without_times(executor.run("a = []" + BALLAST, "q")) == alone


def test_a_program_does_not_run_out_of_memory_by_its_own_circles(make_executor):
    source = "for i in range(95):\n    a = []\n    a.append(a)\n    for j in range(90):\n        a.append([0] * 10000)"
    trace = make_executor(fuel=200_000).run(source, "q")
    assert (trace.error, trace.infra_error) == (None, None)


def test_programs_that_are_kept_compiled_take_a_small_part_of_the_memory():
    source = "".join(f"x{i} = [{i}, 'a', question]\n" for i in range(150))
    compile_program("x = 1", 4_000)
    tracemalloc.start()
    compiled = compile_program(source, 4_000)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(source) > 3_900
    assert compiled.lines
    most = compile_program.cache_info().maxsize + compiling._compile.cache_info().maxsize
    assert kept * most < ExecutionLimits().memory_mb * 2**20 / 8


def test_a_journal_that_needs_more_memory_than_is_left_is_the_programs_memory_fault(make_executor):
    source = "t = '\\n' * 900000\nprint(t)\na = []\nfor i in range(15000):\n    a.append('x' * 100000)"
    trace = make_executor(memory_mb=64, fuel=UNLIMITED).run(source, "q")
    assert trace.error.kind == "budget_memory"


CALLS = {
    "str": "lower() upper() title() capitalize() casefold() isdigit() isalpha() isalnum() isnumeric() isupper() "
    "islower() isspace() removeprefix(t) removesuffix(t) find(t) rfind(t) index(t) count(t) partition(t) rpartition(t) "
    "split() rsplit() splitlines() strip() lstrip() rstrip() startswith(t) endswith(t) join([t]) replace(t,t)",
    "list": "pop() clear() reverse() copy() append(t) insert(0,t) extend([t]) remove(t) index(t) count(t) sort()",
    "dict": "keys() values() items() clear() copy() get(t) pop(t) setdefault(t) update({t:1})",
    "set": "clear() copy() add(t) discard(t) remove(t) union([t]) intersection([t]) difference([t]) "
    "symmetric_difference([t]) update([t]) issubset([t]) issuperset([t]) isdisjoint([t])",
}
VALUES = {"str": "t", "list": "[t]", "dict": "{t: 1}", "set": "{t}"}
FUNCTIONS = {
    "int": "'١٢'",
    "float": "'1e3'",
    "abs": "-1.5",
    "round": "2.675, 2",
    "range": "3",
    "zip": "[t], [t]",
    "dict": "[(t, 1)]",
    "sum": "[0.1, 2]",
    "bool": "t",
}
TEXTS = [
    '"""Split on \'\\\\d+\'."""\nprint(1)',
    "def f():\n    'no-break\\xa0zero\\u200bwidth \\t'\n    return 1\nprint(f())",
    "print(f'{(lambda: 1)}', f'{(1 if question else (lambda: 2))}')",
    "print('\\N{BULLET} \\u0130'.casefold(), 'ΟΔΟΣ'.lower(), 'ŉ'.title())",
    "# -*- coding: latin-1 -*-\nprint('é')",
]


def test_nothing_is_loaded_late(make_executor):
    """Each builtin and method in a fresh sealed worker, and texts that the interpreter reads in rare ways."""
    called = {(kind, call.partition("(")[0]) for kind, calls in CALLS.items() for call in calls.split()}
    assert called == set(HANDLERS)
    head = "t = 'Straße ǅ ١٢ \\u2028 \\\\d'\n"
    programs = [f"{head}print({VALUES[kind]}.{call})" for kind, calls in CALLS.items() for call in calls.split()]
    programs += [f"{head}print({name}({FUNCTIONS.get(name, '[t]')}))" for name in sorted(BUILTINS)]
    executor = make_executor()
    for program in programs + TEXTS:
        trace = executor.run(program, "q")
        assert (trace.error, trace.infra_error) == (None, None), program
