"""Threads that can be left behind."""

from __future__ import annotations

import threading
import time

import pytest
from patience import patience, wait_until

from rpl.core.errors import ExecutorError
from rpl.executors.parent.threads import IDLE_S, Crew, LeftBehind, Task


class Step(Task):
    """Waits for an event, at most `patience` seconds by the watcher's clock."""

    def __init__(self, result, until=None, patience=None, error=None):
        self.result, self.until, self.patience, self.error = result, until, patience, error
        self.began, self.given_up = float("inf"), False
        self.lock = threading.Lock()
        self.thread = None

    def work(self):
        self.began, self.thread = time.monotonic(), threading.current_thread()
        if self.until is not None:
            self.until.wait(patience(60))
        with self.lock:
            if self.given_up:
                raise LeftBehind
            self.patience = None
        if self.error is not None:
            raise self.error
        return self.result

    @property
    def look_at(self):
        return float("inf") if self.patience is None else self.began + self.patience

    def give_up(self):
        with self.lock:
            if self.patience is None or time.monotonic() < self.look_at:
                return None
            self.given_up = True
        return f"gave up {self.result}"


@pytest.fixture
def between():
    return []


@pytest.fixture
def crew(between):
    crew = Crew(2, lambda: between.append(threading.current_thread()))
    yield crew
    crew.close()


def test_results_come_in_the_order_of_the_tasks(crew, between):
    late = threading.Event()
    threading.Timer(0.1, late.set).start()
    assert crew.run([Step(0, late), *(Step(n) for n in range(1, 50))], 1.0) == list(range(50))
    assert crew.run([], 1.0) == []
    wait_until(lambda: len(between) == 50, "the calls between the tasks")


def test_as_many_tasks_run_at_once_as_there_are_threads(crew):
    barrier = threading.Barrier(2, timeout=patience(60))
    steps = [Step(n) for n in range(2)]
    for step in steps:
        step.until = type("Wait", (), {"wait": lambda self, _: barrier.wait()})()
    assert crew.run(steps, 1.0) == [0, 1]


def test_a_task_that_hangs_is_left_behind_in_time(crew):
    never = threading.Event()
    started = time.monotonic()
    assert crew.run([Step("a", never, 0.2), Step("b"), Step("c", never, 0.3)], 0.1) == ["gave up a", "b", "gave up c"]
    assert 0.3 <= time.monotonic() - started < patience(30)  # what hangs, hangs for twice that
    assert crew.run([Step(n) for n in range(5)], 0.1) == list(range(5))  # in fresh threads
    never.set()


def test_the_thread_of_a_task_that_was_left_behind_ends_when_its_call_returns(crew, between):
    slow = threading.Event()
    step = Step("a", slow, 0.1)
    crew.run([step], 0.05)
    assert step.thread.is_alive()
    slow.set()
    step.thread.join(patience(60))
    assert not step.thread.is_alive()
    assert step.thread not in between


def come_down_to(count, before):
    """Waits until at most so many threads live that were not there `before`; those of other tests end meanwhile."""
    wait_until(lambda: len(set(threading.enumerate()) - before) <= count, "the end of the threads")


def test_threads_do_not_become_more_by_hanging():
    never = threading.Event()
    crew = Crew(2, lambda: None)
    before = set(threading.enumerate())
    for _ in range(5):
        crew.run([Step(n, never, 0.02) for n in range(2)], 0.01)
    never.set()
    come_down_to(2, before)
    crew.close()


def test_a_look_too_early_changes_nothing(crew):
    late = threading.Event()
    threading.Timer(0.2, late.set).start()
    assert crew.run([Step("a", late, 5.0)], 0.01) == ["a"]


def test_what_a_task_raises_reaches_the_caller_after_all_are_done(crew):
    late = threading.Event()
    threading.Timer(0.1, late.set).start()
    last = Step(3, late)
    with pytest.raises(KeyError, match="first"):
        crew.run([Step(0), Step(1, error=KeyError("first")), Step(2, error=ValueError("second")), last], 1.0)
    assert last.patience is None
    assert crew.run([Step(1)], 1.0) == [1]


def test_close_ends_the_threads_and_the_crew_can_go_on():
    crew = Crew(3, lambda: None)
    before = set(threading.enumerate())
    crew.run([Step(n) for n in range(9)], 1.0)
    crew.close()
    come_down_to(0, before)
    assert crew.run([Step(1)], 1.0) == [1]
    crew.close()


def test_several_callers_share_the_threads(crew):
    results = {}

    def call(name):
        results[name] = crew.run([Step((name, n)) for n in range(20)], 1.0)

    threads = [threading.Thread(target=call, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(60))
    assert results == {name: [(name, n) for n in range(20)] for name in "abc"}


def test_threads_without_work_end_and_fresh_ones_take_over(crew):
    first = Step("a")
    assert crew.run([first], 1.0) == ["a"]
    first.thread.join(patience(60))  # nothing but idleness ends it
    assert not first.thread.is_alive()
    for _ in range(20):  # some tasks arrive just as a thread gives up waiting
        steps = [Step(number) for number in range(3)]
        assert crew.run(steps, 1.0) == [0, 1, 2]
        time.sleep(IDLE_S)
    assert len({step.thread for step in steps} | {first.thread}) > 1


def test_where_no_thread_can_be_had_there_is_a_typed_error_and_no_hang(crew, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(ExecutorError, match="cannot start a thread: can't start new thread"):
                crew.run([Step(1), Step(2)], 1.0)
    assert crew.run([Step(n) for n in range(5)], 1.0) == list(range(5))


def test_one_thread_does_the_work_where_a_second_cannot_be_had(crew, monkeypatch):
    start, started = threading.Thread.start, []

    def refuse_all_but_one(thread):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_all_but_one)
    assert crew.run([Step(n) for n in range(5)], 1.0) == list(range(5))
    assert len(started) == 1
