"""How often a program is run that infrastructure fails, when the run waits, and what comes out."""

import pytest
from fault_injection import FaultInjection
from helpers_rollouts import ScriptedSampler, TableExecutor, question

from rpl.core.errors import RetrieverError
from rpl.core.records import Trace
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.environment.faults import FaultTolerantExecutor
from rpl.policy.renderer import Renderer
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.keyword.memory import MemoryBM25
from rpl.retrieval.keyword.tokens import Tokenizer
from rpl.retrieval.library.health import HealthConfig, HealthWatch
from rpl.retrieval.library.library import LocalLibrary
from rpl.rollouts.loop import run_rollouts
from rpl.rollouts.requests import RolloutConfig, RolloutRequest

PROGRAM = "print(bm25(question, k=1))"


def library(fail_every):
    words = ("river", "castle", "market", "temple", "harbour")
    corpus = Corpus([f"p{i}" for i in range(5)], [w.title() for w in words], [f"q: one {w}." for w in words])
    return FaultInjection(LocalLibrary(corpus, MemoryBM25(corpus, Tokenizer())), fail_every)


@pytest.mark.parametrize(("retries", "tries"), [(0, "1 try"), (2, "3 tries"), (4, "5 tries")])
def test_a_dead_call_is_made_as_often_as_the_setting_says_and_no_more(tokenizer, retries, tries):
    """Through everything that lies between a rollout and retrieval: nothing multiplies the number."""
    dead = library(fail_every=1)
    config = EnvironmentConfig(workers=1, infra_retries=retries)
    with Environment(config, library=dead) as environment:
        (rollout,) = run_rollouts(
            [RolloutRequest(question(), "g", 0, 1)],
            renderer=Renderer(tokenizer),
            sampler=ScriptedSampler(lambda seed, turn: f"<program>\n{PROGRAM}\n</program>", tokenizer),
            executor=environment.executor,
            config=RolloutConfig(max_context_tokens=8000),
        )
    assert dead.calls == retries + 1
    assert rollout.infra_error.endswith(f"({tries})")
    assert rollout.answer is None


def test_a_fault_that_passes_is_mended_at_once_without_a_pause(monkeypatch):
    monkeypatch.setattr(HealthWatch, "wait", lambda self: pytest.fail("the run paused"))
    moody = library(fail_every=2)
    with Environment(EnvironmentConfig(workers=1), library=moody) as environment:
        traces = environment.executor.run_many([(PROGRAM, f"river {i}") for i in range(2)])
    assert [trace.infra_error for trace in traces] == [None] * 2
    assert moody.failures > 0


class Recovering(TableExecutor):
    """Fails until retrieval was waited for."""

    def __init__(self):
        super().__init__({"a": "seen", "b": "seen"})
        self.works = False

    def _one(self, source):
        return super()._one(source) if self.works or source == "b" else Trace(source, "", infra_error="gone")


@pytest.mark.parametrize("comes_back", [True, False])
def test_what_fails_twice_waits_for_retrieval(monkeypatch, comes_back):
    inner, waits = Recovering(), []

    def wait(self):
        waits.append(len(inner.jobs))
        if not comes_back:
            raise RetrieverError("retrieval did not come back within 300 s")
        inner.works = True

    monkeypatch.setattr(HealthWatch, "wait", wait)
    executor = FaultTolerantExecutor(inner, HealthWatch(library(10**9), HealthConfig()), retries=2)
    failed, sound = executor.run_many([("a", "q"), ("b", "q")])
    assert sound.infra_error is None
    assert waits == [3]  # both programs, then the failed one alone
    assert [source for source, _ in inner.jobs] == ["a", "b", "a", *(["a"] if comes_back else [])]
    wanted = None if comes_back else "gone (2 tries); retrieval did not come back within 300 s"
    assert failed.infra_error == wanted
