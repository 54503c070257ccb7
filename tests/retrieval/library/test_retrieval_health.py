import time

import pytest
from patience import patience

from rpl.core.errors import ConfigError, RetrieverError
from rpl.retrieval.base import Retriever
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.library.health import HealthConfig, HealthWatch, check, require_healthy
from rpl.retrieval.library.library import LocalLibrary
from rpl.retrieval.rerank.rerankers import LateInteractionReranker


class Constant(Retriever):
    """Returns the same passages for every query."""

    name = "bm25"

    def __init__(self, corpus):
        self.corpus = corpus

    def search(self, queries, k):
        return [[self.corpus.passage(i) for i in range(min(k, 10))] for _ in queries]


class Dead(Retriever):
    name = "dense"

    def search(self, queries, k):
        raise RetrieverError("server gone")


def test_a_healthy_library(library):
    results = check(library)
    assert [result.name for result in results] == ["corpus", "bm25", "dense", "rerank", "read", "links"]
    assert all(result.ok for result in results), results
    assert all(result.detail and result.seconds >= 0 for result in results)
    require_healthy(library)


def test_absent_backends_are_not_checked(keyword_library):
    assert [result.name for result in check(keyword_library)] == ["corpus", "bm25", "read", "links"]


def test_broken_backends_are_named(corpus, library):
    broken = LocalLibrary(corpus, Constant(corpus), Dead())
    failed = {result.name: result.detail for result in check(broken) if not result.ok}
    assert set(failed) == {"bm25", "dense"}
    assert "same first result" in failed["bm25"]
    assert failed["dense"] == "RetrieverError: server gone"
    with pytest.raises(RetrieverError, match=r"bm25: .*; dense: .*server gone"):
        require_healthy(broken)


def test_a_reranker_that_reverses_is_noticed(library, monkeypatch):
    original = LateInteractionReranker.rerank
    monkeypatch.setattr(LateInteractionReranker, "rerank", lambda self, q, p: original(self, q, p)[::-1])
    assert [result.name for result in check(library) if not result.ok] == ["rerank"]


def test_tiny_and_untitled_corpora():
    corpus = Corpus(["a", "b"], ["", ""], ["one river", "two castles"])
    results = check(LocalLibrary(corpus, Constant(corpus)))
    assert results[0].ok
    assert "2 of 2 sampled without a title" in results[0].detail


class Moody(LocalLibrary):
    """Finds everything, or what `mood` makes of it: `down` fails, `hang` never answers."""

    mood = "well"

    def serve(self, calls):
        if self.mood == "down":
            raise RetrieverError("no route to host")
        if self.mood == "hang":
            time.sleep(60)
        return super().serve(calls)


@pytest.fixture
def moody(corpus, retrievers, monkeypatch):
    monkeypatch.setattr("rpl.retrieval.library.health.BACKOFF_S", 0.001)
    return Moody(corpus, retrievers["memory"])


def test_the_checks_before_a_run_are_made_once(moody):
    watch = HealthWatch(moody)
    watch.preflight()
    moody.mood = "down"
    watch.preflight()
    with pytest.raises(RetrieverError, match="no route to host"):
        HealthWatch(moody).preflight()


def test_canary_queries_are_due_after_a_while_and_a_short_fault_is_forgiven(moody, monkeypatch):
    watch = HealthWatch(moody, HealthConfig(canary_every_s=0.05))
    watch.preflight()
    assert not watch.due
    time.sleep(0.06)
    assert watch.due
    failures = [RetrieverError("blip")]
    probe = watch._probe

    def flaky():
        if failures:
            raise failures.pop()
        probe()

    monkeypatch.setattr(watch, "_probe", flaky)
    watch.verify()
    assert not watch.due
    moody.mood = "down"
    with pytest.raises(RetrieverError, match="no route"):
        watch.verify()


def test_a_library_that_hangs_does_not_hang_the_run(moody):
    watch = HealthWatch(moody, HealthConfig(canary_s=0.1))
    watch.preflight()
    moody.mood = "hang"
    began = time.monotonic()
    with pytest.raises(RetrieverError, match=r"canary queries were not answered within 0\.1 s"):
        watch.verify()
    assert time.monotonic() - began < patience(5.0)  # the hang is longer


def test_a_run_waits_for_retrieval_and_says_so(moody, capsys, monkeypatch):
    watch = HealthWatch(moody, HealthConfig(wait_s=30.0))
    watch.preflight()
    watch.wait()
    assert capsys.readouterr().err == ""
    moody.mood = "down"
    monkeypatch.setattr(
        "rpl.retrieval.library.health.time.sleep", lambda s: setattr(moody, "mood", "well") if s > 0.5 else None
    )
    watch.wait()
    said = capsys.readouterr().err
    assert "the run pauses for at most 30 s: no route to host" in said
    assert "the run goes on" in said


def test_a_run_does_not_wait_for_ever(moody):
    watch = HealthWatch(moody, HealthConfig(wait_s=0.05))
    watch.preflight()
    moody.mood = "down"
    with pytest.raises(RetrieverError, match="did not come back within 0 s: no route to host"):
        watch.wait()


@pytest.mark.parametrize("settings", [{"canary_every_s": 0.0}, {"canary_s": -1.0}, {"wait_s": -0.1}])
def test_bad_settings_name_their_key(settings):
    with pytest.raises(ConfigError, match=f"environment.health.{next(iter(settings))}"):
        HealthConfig(**settings)
