"""Micro-batching: what is asked at the same time is searched at once, and every answer is the one it would be alone."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rpl.core.errors import RetrieverError
from rpl.core.records import Passage
from rpl.retrieval.base import Retriever
from rpl.retrieval.library.batching import IDLE_S, MicroBatcher
from rpl.retrieval.library.library import LocalLibrary


class Counting:
    """Finds passages named after the query; notes its batches and who calls it, and can be held up."""

    def __init__(self):
        self.batches, self.threads, self.gate = [], set(), threading.Event()
        self.gate.set()

    def __call__(self, queries, k):
        self.gate.wait()
        self.threads.add(threading.current_thread().name)
        self.batches.append((len(queries), k))
        if "poison" in queries:
            raise ValueError("cannot take poison")
        return [[Passage(f"{query}-{rank}", "", "", 0.0, rank) for rank in range(k)] for query in queries]


def gather(batcher, search, requests):
    """Asks from one thread a request while the search is held up, then lets it go."""
    search.gate.clear()
    with ThreadPoolExecutor(len(requests) + 1) as pool:
        first = pool.submit(batcher.search, [("first", 1)])
        while batcher._waiting or batcher._owner is None:
            time.sleep(0.001)
        jobs = [pool.submit(batcher.search, [request]) for request in requests]
        while len(batcher._waiting) < len(requests):
            time.sleep(0.001)
        search.gate.set()
        first.result()
        return [job.result()[0] for job in jobs]


def test_concurrent_searches_become_one_with_the_answers_of_single_ones():
    search = Counting()
    batcher = MicroBatcher(search, "dense")
    requests = [(f"q{i % 7}", 1 + i % 5) for i in range(20)]
    answers = gather(batcher, search, requests)
    assert search.batches == [(1, 1), (7, 5)]  # repeated queries are searched once
    for (query, k), answer in zip(requests, answers, strict=True):
        assert [p.id for p in answer] == [f"{query}-{rank}" for rank in range(k)]
    assert search.threads == {"rpl-dense"}


def test_a_batch_is_bounded():
    search, sizes = Counting(), []
    batcher = MicroBatcher(search, "dense", max_batch=4, on_batch=sizes.append)
    gather(batcher, search, [(f"q{i}", 1) for i in range(10)])
    assert sizes == [1, 4, 4, 2]
    outcomes = batcher.search([(f"long{i}", 1) for i in range(9)])
    assert [o[0].id for o in outcomes] == [f"long{i}-0" for i in range(9)]
    assert sizes[4:] == [4, 4, 1]


def test_a_query_that_fails_takes_no_other_with_it():
    search = Counting()
    batcher = MicroBatcher(search, "dense")
    answers = gather(batcher, search, [("a", 2), ("poison", 2), ("b", 2)])
    assert [p.id for p in answers[0]] == ["a-0", "a-1"]
    assert isinstance(answers[1], ValueError)
    assert [p.id for p in answers[2]] == ["b-0", "b-1"]


def test_lists_that_do_not_belong_to_the_queries_are_a_fault():
    (outcome,) = MicroBatcher(lambda queries, k: [[], []], "dense").search([("a", 1)])
    assert isinstance(outcome, RetrieverError)
    assert "2 lists for 1 queries" in str(outcome)


def test_the_owner_ends_without_work_and_another_takes_over():
    search = Counting()
    batcher = MicroBatcher(search, "dense")
    for number in range(10):
        assert batcher.search([("a", 1)])[0][0].id == "a-0"
        if number % 3 == 0:
            time.sleep(IDLE_S)  # a search arrives just as the owner gives up waiting, or soon after
    owner = batcher._owner
    if owner is not None:
        owner.join(5)
    assert batcher._owner is None
    assert batcher.search([("b", 1)])[0][0].id == "b-0"


def test_closing_lets_what_was_asked_finish_and_refuses_the_rest():
    search = Counting()
    batcher = MicroBatcher(search, "dense")
    search.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(batcher.search, [("a", 1)])
        while batcher._owner is None:
            time.sleep(0.001)
        owner = batcher._owner
        batcher.close(timeout=0.01)  # the search hangs: it is left behind
        search.gate.set()
        assert job.result()[0][0].id == "a-0"
    owner.join(5)
    batcher.close()
    assert not owner.is_alive()
    with pytest.raises(RetrieverError, match="closed"):
        batcher.search([("a", 1)])


class Slow(Retriever):
    """Takes as long for many queries as for one, like an encoder with a large index behind it."""

    name = "dense"
    gather = True

    def __init__(self, corpus, seconds):
        self.corpus, self.seconds = corpus, seconds

    def search(self, queries, k):
        time.sleep(self.seconds)
        return [[self.corpus.passage(len(query) % len(self.corpus))] for query in queries]


@pytest.mark.parametrize(("gathers", "most"), [(True, 0.25), (False, None)])
def test_sixty_four_programs_wait_for_a_few_searches(corpus, retrievers, monkeypatch, gathers, most):
    """The twin without gathering does one search a call, in any number of threads (here 64 take their turns)."""
    monkeypatch.setattr(Slow, "gather", gathers)
    lock, searches = threading.Lock(), []
    backend = Slow(corpus, 0.01)
    search = backend.search

    def one_at_a_time(queries, k):
        with lock:
            searches.append(len(queries))
            return search(queries, k)

    backend.search = one_at_a_time
    with LocalLibrary(corpus, retrievers["bm25s"], backend) as library, ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda i: library.call("dense", {"query": f"{'x' * i}y"}).passages, range(64)))
    assert [passages[0].id for passages in found] == [corpus.ids[(i + 1) % len(corpus)] for i in range(64)]
    assert sum(searches) == 64
    if gathers:
        assert len(searches) <= most * 64
    else:
        assert len(searches) == 64
