"""The environment: lazy, closed when it should be, and configured from plain values."""

from __future__ import annotations

import pytest

from rpl.core.errors import ConfigError, RetrieverError
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.executors.base import ExecutionLimits
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.keyword.memory import MemoryBM25
from rpl.retrieval.keyword.tokens import Tokenizer
from rpl.retrieval.library import opening as opening_module
from rpl.retrieval.library.library import LocalLibrary
from rpl.retrieval.library_config import LibraryConfig


class Closable(LocalLibrary):
    def __init__(self):
        words = ("river", "castle", "market", "temple", "harbour")
        corpus = Corpus([f"p{i}" for i in range(5)], [w.title() for w in words], [f"q: one {w}." for w in words])
        super().__init__(corpus, MemoryBM25(corpus, Tokenizer()))
        self.closed = 0

    def close(self):
        self.closed += 1


@pytest.fixture
def opened(monkeypatch):
    """Libraries that were opened, with their configs."""
    made = []

    def open_library(config, progress=None):
        made.append((config, Closable()))
        return made[-1][1]

    monkeypatch.setattr(opening_module, "open_library", open_library)
    return made


def test_nothing_is_opened_before_it_is_needed(opened):
    with Environment(EnvironmentConfig()) as environment:
        environment.connect(len)
    assert not opened


def test_library_and_executor_are_made_once_from_the_config(opened):
    config = EnvironmentConfig(LibraryConfig(corpus="atlas-mini"), ExecutionLimits(calls=3), workers=1)
    with Environment(config) as environment:
        assert environment.library is environment.library
        assert environment.executor is environment.executor
        assert (environment.sandbox.limits.calls, environment.sandbox.workers) == (3, 1)
        assert environment.executor.run("print(bm25(question, k=1))", "q").printed_ids == ("p0",)
    ((used, library),) = opened
    assert used.corpus == "atlas-mini"
    assert library.closed == 1


@pytest.mark.parametrize("early", [True, False])
def test_the_tokenizer_reaches_the_executor(opened, early):
    with Environment(EnvironmentConfig(workers=1)) as environment:
        if not early:
            assert environment.executor
        environment.connect(len)
        assert environment.executor.run("print('abc')", "q").printed_tokens == 3


def test_a_given_library_is_used_and_stays_open(opened):
    given = Closable()
    with Environment(EnvironmentConfig(workers=1), library=given) as environment:
        assert environment.executor.run("print(bm25(question, k=1))", "q").printed_ids == ("p0",)
    assert not opened
    assert given.closed == 0


def test_a_closed_environment_can_be_used_again(opened):
    environment = Environment(EnvironmentConfig(workers=1))
    environment.connect(len)
    for _ in range(2):
        assert environment.executor.run("print('abc')", "q").printed_tokens == 3
        environment.close()
    environment.close()
    assert [library.closed for _, library in opened] == [1, 1]


def test_a_library_that_does_not_work_runs_nothing(monkeypatch):
    monkeypatch.setattr(MemoryBM25, "search", lambda self, queries, k: [[] for _ in queries])
    with (
        Environment(EnvironmentConfig(workers=1), library=Closable()) as environment,
        pytest.raises(RetrieverError, match="bm25: 0 of 5 passages found by their own text"),
    ):
        _ = environment.executor


@pytest.mark.parametrize(("name", "value"), [("workers", 0), ("infra_retries", -1)])
def test_bad_settings_name_their_key(name, value):
    with pytest.raises(ConfigError, match=f"environment.{name}"):
        EnvironmentConfig(**{name: value})


@pytest.mark.parametrize("name", ["calls", "fuel", "wall_s", "memory_mb", "printed_tokens", "passages", "source_chars"])
def test_limits_must_be_positive(name):
    with pytest.raises(ConfigError, match=f"limits.{name}"):
        ExecutionLimits(**{name: 0})


@pytest.mark.parametrize(("name", "words"), [("monty", "monty is gone"), ("python", "must be restricted")])
def test_an_executor_that_is_not_there_is_refused_in_one_line(name, words):
    with pytest.raises(ConfigError, match=f"^environment.executor.*{words}") as caught:
        EnvironmentConfig(executor=name)
    assert "\n" not in str(caught.value)
