import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fault_injection import FaultInjection

from rpl.core.errors import PrimitiveError, RetrieverError
from rpl.retrieval.base import MAX_K, Retriever
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.dense.encoders import HashEncoder
from rpl.retrieval.library.counting import CallCounts
from rpl.retrieval.library.library import MAX_QUERY_CHARS, MAX_RERANK, LocalLibrary
from rpl.retrieval.rerank.rerankers import LateInteractionReranker


class Flaky(Retriever):
    """Fails at the first `failures` searches."""

    name = "bm25"

    def __init__(self, corpus, failures, error):
        self.corpus, self.failures, self.error, self.searches = corpus, failures, error, 0

    def search(self, queries, k):
        self.searches += 1
        if self.searches <= self.failures:
            raise self.error
        return [[self.corpus.passage(0)] for _ in queries]


def test_each_primitive(library, retrievers):
    query = "river bridge"
    assert library.primitives == ("bm25", "dense", "rerank", "read", "links")
    assert library.call("bm25", {"query": query, "k": 3}).passages == tuple(retrievers["bm25s"].search([query], 3)[0])
    assert library.call("dense", {"query": query, "k": 3}).passages == tuple(retrievers["dense"].search([query], 3)[0])
    assert [p.id for p in library.call("read", {"passage_id": "p7"}).passages] == ["p7"]
    ids = [p.id for p in library.call("bm25", {"query": query, "k": 5}).passages]
    reranked = library.call("rerank", {"query": query, "passages": ids, "k": None}).passages
    assert sorted(p.id for p in reranked) == sorted(ids)
    assert library.call("rerank", {"query": query, "passages": ids, "k": 2}).passages == reranked[:2]
    assert library.call("rerank", {"query": query, "passages": [], "k": None}).passages == ()
    assert isinstance(library.call("links", {"passage": "p7", "k": 5}).passages, tuple)


def test_k_defaults_to_ten(keyword_library):
    assert len(keyword_library.call("bm25", {"query": "river"}).passages) == 10


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("search", {"query": "x"}, "unknown primitive 'search'; this library offers bm25, dense, rerank, read, links"),
        ("bm25", {"query": 3, "k": 3}, r"bm25 needs a query \(a string\), got 3"),
        ("bm25", {"k": 3}, r"bm25 needs a query \(a string\), got None"),
        ("bm25", {"query": "x" * (MAX_QUERY_CHARS + 1), "k": 3}, "at most 2000 are allowed"),
        ("bm25", {"query": "\ud800", "k": 3}, "not valid Unicode"),
        ("bm25", {"query": "x", "k": 0}, f"k must be from 1 to {MAX_K}, got 0"),
        ("bm25", {"query": "x", "k": MAX_K + 1}, f"k must be from 1 to {MAX_K}, got 101"),
        ("dense", {"query": "x", "k": "5"}, "k must be a whole number from 1 to 100, got '5'"),
        ("dense", {"query": "x", "k": True}, "k must be a whole number"),
        ("bm25", {"query": "x", "k": 2.0}, "k must be a whole number"),
        ("bm25", {"query": "x", "top": 3}, "bm25 takes query, k; it does not take 'top'"),
        ("read", {"passage_id": "nope"}, "read: there is no passage with id 'nope'"),
        ("read", {"passage_id": 3}, r"read needs a passage id \(a string\), got 3"),
        ("links", {"passage": "nope", "k": 3}, "links: there is no passage with id 'nope'"),
        ("links", {"passage": "p1", "k": 0}, "k must be from 1 to 100"),
        ("rerank", {"query": "x", "passages": "p1", "k": None}, "rerank needs a list of passages, got 'p1'"),
        ("rerank", {"query": "x", "passages": ["p1", "nope"], "k": None}, "no passage with id 'nope'"),
        ("rerank", {"query": "", "passages": ["p1"], "k": None}, "the query is empty"),
    ],
)
def test_faults_of_programs(library, name, args, message):
    before = len(library.cache)
    with pytest.raises(PrimitiveError, match=message):
        library.call(name, args)
    assert len(library.cache) == before


def test_rerank_has_a_limit():
    size = MAX_RERANK + 5
    corpus = Corpus([f"p{i}" for i in range(size)], [""] * size, ["x"] * size)
    library = LocalLibrary(corpus, Flaky(corpus, 0, None), reranker=object())
    with pytest.raises(PrimitiveError, match="at most 200 passages, got 205"):
        library.call("rerank", {"query": "x", "passages": corpus.ids, "k": None})


@pytest.mark.parametrize(("name", "args"), [("dense", {"query": "x"}), ("rerank", {"query": "x", "passages": []})])
def test_missing_backends_are_the_programs_concern(keyword_library, name, args):
    assert keyword_library.primitives == ("bm25", "read", "links")
    with pytest.raises(PrimitiveError, match=f"{name} is not available in this library"):
        keyword_library.call(name, args)


def test_repeated_calls_come_from_the_cache(library):
    first = library.call("dense", {"query": "river  bridge", "k": 5})
    again = library.call("dense", {"k": 5, "query": " river bridge"})
    assert (first.cached, again.cached) == (False, True)
    assert first.passages == again.passages
    for other in ({"query": "river bridge", "k": 4}, {"query": "River bridge", "k": 5}):
        assert not library.call("dense", other).cached
    assert not library.call("bm25", {"query": "river bridge", "k": 5}).cached
    assert (library.counter.total.cached, library.counter.total.ok) == (1, 5)


def test_the_cache_forgets_what_was_used_least_recently_and_may_be_off(corpus, retrievers):
    library = LocalLibrary(corpus, retrievers["bm25s"], cache_size=2)
    cached = [
        library.call("bm25", {"query": q}).cached for q in ("river", "castle", "river", "king", "river", "castle")
    ]
    assert cached == [False, False, True, False, True, False]
    off = LocalLibrary(corpus, retrievers["bm25s"], cache_size=0)
    assert [off.call("bm25", {"query": "river"}).cached for _ in range(2)] == [False, False]


def test_the_cache_of_token_vectors_keeps_within_its_memory(corpus):
    reranker = LateInteractionReranker(HashEncoder(), cache_mb=1)
    passages = list(corpus)
    first = reranker.rerank("river", passages[:50])
    assert 0 < reranker._tokens.currsize <= 1 << 20
    none = LateInteractionReranker(HashEncoder(), cache_mb=0)
    assert none.rerank("river", passages[:50]) == first
    assert none._tokens.currsize == 0


@pytest.mark.parametrize("error", [RuntimeError("boom"), RetrieverError("boom"), KeyError("boom"), MemoryError("boom")])
def test_failures_are_infrastructure_faults_and_never_cached(corpus, error):
    backend = Flaky(corpus, 2, error)
    library = LocalLibrary(corpus, backend)
    for _ in range(2):
        with pytest.raises(RetrieverError, match="boom"):
            library.call("bm25", {"query": "x", "k": 3})
    assert len(library.cache) == 0
    result = library.call("bm25", {"query": "x", "k": 3})
    assert [p.id for p in result.passages] == ["p0"]
    assert not result.cached
    assert library.call("bm25", {"query": "x", "k": 3}).cached
    assert backend.searches == 3


def test_an_empty_result_is_a_result(keyword_library):
    for _ in range(2):
        result = keyword_library.call("bm25", {"query": "zeppelin", "k": 3})
        assert (result.passages, result.status) == ((), "empty")
        assert not result.cached  # only results with passages are kept
    assert len(keyword_library.cache) == 0
    assert keyword_library.call("bm25", {"query": "river", "k": 3}).status == "ok"


def test_a_score_that_is_not_finite_is_an_infrastructure_fault(corpus):
    class Broken(Flaky):
        def search(self, queries, k):
            return [[self.corpus.passage(0, score=float("nan"))]]

    library = LocalLibrary(corpus, Broken(corpus, 0, None))
    with pytest.raises(RetrieverError, match="not a finite number"):
        library.call("bm25", {"query": "x"})
    assert len(library.cache) == 0


def test_fingerprint(corpus, retrievers):
    one = LocalLibrary(corpus, retrievers["bm25s"], settings="a").fingerprint
    assert one == LocalLibrary(corpus, retrievers["memory"], settings="a", cache_size=3).fingerprint
    other = Corpus(corpus.ids, corpus.titles, [*corpus.texts[:-1], "changed"])
    assert one != LocalLibrary(other, retrievers["bm25s"], settings="a").fingerprint
    assert one != LocalLibrary(corpus, retrievers["bm25s"], settings="b").fingerprint


def test_threads_get_what_one_thread_gets(library):
    calls = []
    for i in range(60):
        query = f"{('river', 'castle', 'king', 'queen')[i % 4]} {i % 15}"
        calls += [("bm25", {"query": query, "k": 7}), ("dense", {"query": query, "k": 7})]
        calls += [("rerank", {"query": query, "passages": [f"p{(i * 7 + j) % 120}" for j in range(6)], "k": None})]
        calls += [("links", {"passage": f"p{i}", "k": 5})]
    wanted = [library.call(*call).passages for call in calls]
    library.cache.clear()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda call: library.call(*call).passages, calls))
    assert found == wanted


def test_the_encoder_and_its_index_are_never_used_at_the_same_time(library, monkeypatch):
    """Counts how many threads are inside the encoder or the dense index at once."""
    inside, most = [0], [0]
    guard = threading.Lock()

    def watch(function):
        def watched(*args, **kwargs):
            with guard:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            try:
                threading.Event().wait(0.001)
                return function(*args, **kwargs)
            finally:
                with guard:
                    inside[0] -= 1

        return watched

    dense = library.dense
    monkeypatch.setattr(dense.encoder, "encode", watch(dense.encoder.encode))
    monkeypatch.setattr(library.reranker.encoder, "_tokenizer", watch(dense.encoder._tokenizer))
    monkeypatch.setattr(dense, "_nearest", watch(dense._nearest))
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(library.call, "dense", {"query": f"river {i}", "k": 3}) for i in range(20)]
        jobs += [
            pool.submit(library.call, "rerank", {"query": f"river {i}", "passages": ["p1", "p2"], "k": None})
            for i in range(20)
        ]
        for job in jobs:
            job.result()
    # `encode` of the hash encoder calls its tokenizer inside itself, hence two.
    assert most[0] == 2


def test_close_frees_backends(corpus):
    class Closable(Flaky):
        closed = False

        def close(self):
            self.closed = True

    backend = Closable(corpus, 0, None)
    with LocalLibrary(corpus, backend) as library:
        library.call("bm25", {"query": "x"})
    assert backend.closed
    assert len(library.cache) == 0


def test_fault_injection(library):
    faulty = FaultInjection(library, fail_every=3)
    for i in range(9):
        call = ("bm25", {"query": f"river {i}", "k": 2})
        if i % 3 == 2:
            with pytest.raises(RetrieverError, match="injected fault in bm25"):
                faulty.call(*call)
        else:
            assert len(faulty.call(*call).passages) == 2
    assert (faulty.calls, faulty.failures) == (9, 3)
    assert faulty.fingerprint == library.fingerprint
    only_dense = FaultInjection(library, 1, primitives=["dense"], skip=1)
    only_dense.call("bm25", {"query": "x"})
    only_dense.call("dense", {"query": "x"})
    with pytest.raises(RetrieverError):
        only_dense.call("dense", {"query": "y"})


def test_calls_are_counted_by_what_became_of_them(library):
    faulty = FaultInjection(library, fail_every=2, primitives=["dense"])
    for query in ("river", "river", "zeppelin"):
        faulty.call("bm25", {"query": query})
    faulty.call("dense", {"query": "river"})
    with pytest.raises(RetrieverError):
        faulty.call("dense", {"query": "castle"})
    with pytest.raises(PrimitiveError):
        faulty.call("bm25", {"query": "x", "k": 0})
    counts = faulty.counter.snapshot()
    assert counts["bm25"] == CallCounts(ok=2, empty=1, refused=1, cached=1)
    assert counts["dense"] == CallCounts(ok=1, failed=1)
    total = faulty.counter.total
    assert (total.attempted, total.failed) == (5, 1)
    assert str(total) == "5 calls attempted, 4 succeeded (1 of them empty), 1 failed"
    assert total - counts["dense"] == counts["bm25"]


def test_several_calls_at_once_answer_like_one_after_the_other(library):
    calls = [("dense", {"query": "river"}), ("read", {"passage_id": "nope"}), ("bm25", {"query": "castle", "k": 2})]
    calls += [("dense", {"query": "castle", "k": 3}), ("rerank", {"query": "king", "passages": ["p1", "p2"]})]
    outcomes = library.call_many(calls)
    library.cache.clear()
    for call, outcome in zip(calls, outcomes, strict=True):
        if call[0] == "read":
            assert isinstance(outcome, PrimitiveError)
        else:
            assert library.call(*call) == outcome
    assert library.call_many([]) == []


def test_canary_queries_pass_the_cache_and_are_not_counted(library):
    library.call("bm25", {"query": "river", "k": 2})
    before = library.counter.total, len(library.cache)
    assert len(library.ask("bm25", {"query": "river", "k": 2})) == 2
    assert (library.counter.total, len(library.cache)) == before


@pytest.mark.parametrize("query", ["", " \n\t", "\u3000"])
@pytest.mark.parametrize("name", ["bm25", "dense"])
def test_an_empty_query_finds_nothing_and_asks_no_backend(library, monkeypatch, name, query):
    monkeypatch.setattr(library, "serve", lambda calls: pytest.fail("asked"))
    assert library.call(name, {"query": query, "k": 3}).status == "empty"
    assert library.counter.snapshot()[name].empty == 1


def test_a_query_of_stop_words_finds_nothing_by_keyword(library):
    assert library.call("bm25", {"query": "the of and", "k": 3}).passages == ()


def test_an_empty_query_among_others_keeps_its_place(library):
    calls = [(name, {"query": query, "k": 2}) for name in ("dense", "bm25") for query in ("", "river bridge", " ")]
    found = [len(outcome.passages) for outcome in library.call_many(calls)]
    assert found == [0, 2, 0, 0, 2, 0]
