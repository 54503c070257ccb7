"""The baselines with the real renderer and tokenizer, and a scripted sampler and executor."""

from __future__ import annotations

import re
from typing import Any

import pytest
from evaluation_fakes import CAPITALS, FakeExecutor, ScriptedSampler, questions

from rpl.agents.baselines import Direct, FixedProgram, Policy, fixed_source
from rpl.core.errors import ConfigError, ForbiddenConstruct, RetrieverError
from rpl.evaluation.comparison import best_k, compare
from rpl.evaluation.protocol import evaluate
from rpl.policy.renderer import Renderer
from rpl.policy.tiny import tiny_tokenizer
from rpl.programs.grammar import canonical
from rpl.rollouts.requests import RolloutConfig

PROGRAM = "<program>\nfor p in bm25(question, k=1):\n    print(p)\n</program>"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer)


def reader(text: str) -> str:
    """Searches first, then answers with what the result says; without a result it guesses."""
    found = re.search(r"<result>\n.*The capital is (\w+)\.", text)
    opened = text.endswith("<answer>")
    if found is None:
        return "Lagos</answer>" if opened else PROGRAM
    return f"{found.group(1)}</answer>" if opened else f"<answer>{found.group(1)}</answer>"


def restless(text: str) -> str:
    """Searches again and again unless the answer tag is open."""
    return reader(text) if text.endswith("<answer>") else PROGRAM


def test_fixed_programs_are_in_the_language() -> None:
    assert fixed_source(3) == "for p in bm25(question, k=3):\n    print(p)"
    assert "fuse(bm25(question, k=10), dense(question, k=10), k=3)" in fixed_source(3, "fuse")
    for search in ("bm25", "dense", "fuse"):
        assert canonical(fixed_source(20, search)) == fixed_source(20, search)
    with pytest.raises(ConfigError, match="between 1 and 100, got 0"):
        fixed_source(0)
    with pytest.raises(ConfigError, match="'bm26'"):
        fixed_source(3, "bm26")  # type: ignore[arg-type]


def test_fixed_program_renders_the_transcript_of_the_policy(renderer: Renderer, tokenizer: Any) -> None:
    asked, executor = questions(3), FakeExecutor()
    sampler = ScriptedSampler(tokenizer, reader)
    system = FixedProgram(renderer, sampler, executor, k=1, batch_size=2)
    rollouts = system.answer(asked)
    assert sampler.flights == [2, 1]
    assert all(params.temperature == 0 for params in sampler.params)
    assert executor.sources == [fixed_source(1)] * 3
    for question, rollout in zip(asked, rollouts, strict=True):
        answer = question.answers[0]
        observation = rollout.traces[0].observation
        ids, _ = renderer.transcript(question.question, [(fixed_source(1), observation)], answer, eos=False)
        assert list(rollout.token_ids) == ids
        written = [i for i, own in zip(rollout.token_ids, rollout.completion_mask, strict=True) if own]
        assert tokenizer.decode(written) == f"<answer>{answer}</answer>"
        assert (rollout.answer, rollout.invalid) == (answer, None)
        assert rollout.printed_ids == question.gold_docs
        assert (len(rollout.turns), rollout.num_calls) == (2, 1)


def test_weights_that_search_on_are_made_to_answer(renderer: Renderer, tokenizer: Any) -> None:
    sampler = ScriptedSampler(tokenizer, restless)
    system = FixedProgram(renderer, sampler, FakeExecutor(), k=1)
    (rollout,) = system.answer(questions(1))
    assert rollout.answer == "Paris"
    assert len(sampler.opened) == 2
    written = [i for i, own in zip(rollout.token_ids, rollout.completion_mask, strict=True) if own]
    assert tokenizer.decode(written) == "Paris</answer>"
    ids = renderer.prefilled_ids(questions(1)[0].question, system.source, rollout.traces[0].observation, answer=True)
    assert list(rollout.token_ids[: len(ids)]) == ids


def test_silent_weights_have_no_answer(renderer: Renderer, tokenizer: Any) -> None:
    (rollout,) = FixedProgram(renderer, ScriptedSampler(tokenizer, lambda _: ""), FakeExecutor(), k=1).answer(
        questions(1)
    )
    assert (rollout.answer, rollout.invalid) == (None, "no_action")


def test_given_program_and_bad_arguments(renderer: Renderer, tokenizer: Any) -> None:
    sampler, executor = ScriptedSampler(tokenizer, reader), FakeExecutor()
    system = FixedProgram(renderer, sampler, executor, source="x = dense( question )\nprint(x[0])")
    assert system.source == canonical("x = dense(question)\nprint(x[0])")
    assert (system.name, system.settings["k"]) == ("fixed program", None)
    assert FixedProgram(renderer, sampler, executor, k=4, search="dense").name == "fixed dense k=4"
    for arguments in ({}, {"k": 3, "source": "print(1)"}):
        with pytest.raises(ConfigError, match="either k or source"):
            FixedProgram(renderer, sampler, executor, **arguments)
    with pytest.raises(ForbiddenConstruct):
        FixedProgram(renderer, sampler, executor, source="import os")


def test_direct_never_sees_a_passage(renderer: Renderer, tokenizer: Any) -> None:
    sampler = ScriptedSampler(tokenizer, reader)
    result = evaluate(Direct(renderer, sampler, batch_size=4), questions(6), progress=False)
    assert sampler.flights == [4, 2]
    assert not any("<result>" in prompt for batch in sampler.opened for prompt in batch)
    assert {record.prediction for record in result.records} == {"Lagos"}
    metrics = result.metrics()
    assert metrics["em"].mean == metrics["calls"].mean == metrics["printed_tokens"].mean == metrics["recall"].mean == 0
    assert metrics["printed_nothing"].mean == 0
    (empty,) = Direct(renderer, ScriptedSampler(tokenizer, lambda _: " </answer>")).answer(questions(1))
    assert (empty.answer, empty.invalid) == (None, "no_action")


def test_policy_runs_the_loop_greedily(renderer: Renderer, tokenizer: Any) -> None:
    sampler = ScriptedSampler(tokenizer, reader)
    config = RolloutConfig(max_turns=3, max_new_tokens=128, temperature=1.0, batch_size=4)
    policy = Policy(renderer, sampler, FakeExecutor(), config)
    result = evaluate(policy, questions(6), progress=False)
    assert {params.temperature for params in sampler.params} == {0.0}
    assert [record.prediction for record in result.records] == [q.answers[0] for q in questions(6)]
    metrics = result.metrics()
    assert (metrics["em"].mean, metrics["turns"].mean, metrics["recall"].mean) == (1.0, 2.0, 1.0)
    # what the policy writes itself is exactly what the fixed program is given
    fixed = FixedProgram(renderer, ScriptedSampler(tokenizer, reader), FakeExecutor(), k=1)
    own, given = policy.answer(questions(2)), fixed.answer(questions(2))
    assert [r.token_ids for r in own] == [r.token_ids for r in given]
    assert sum(own[0].completion_mask) > sum(given[0].completion_mask)


def test_restless_policy_is_invalid(renderer: Renderer, tokenizer: Any) -> None:
    config = RolloutConfig(max_turns=2, max_new_tokens=128, temperature=1.0, batch_size=4)
    policy = Policy(renderer, ScriptedSampler(tokenizer, restless), FakeExecutor(), config)
    result = evaluate(policy, questions(2), progress=False)
    assert {record.invalid for record in result.records} == {"turn_budget"}
    assert result.metrics()["invalid"].mean == 1.0


@pytest.mark.parametrize("kind", ["policy", "fixed"])
def test_a_failing_retriever_stops_every_system(kind: str, renderer: Renderer, tokenizer: Any) -> None:
    sampler, executor = ScriptedSampler(tokenizer, reader), FakeExecutor(fail_on="Spain")
    config = RolloutConfig(max_turns=2, max_new_tokens=128, temperature=1.0, batch_size=4)
    system = (
        Policy(renderer, sampler, executor, config)
        if kind == "policy"
        else FixedProgram(renderer, sampler, executor, k=1)
    )
    with pytest.raises(RetrieverError, match="index server gone"):
        evaluate(system, questions(4), progress=False)
    assert evaluate(system, questions(2), progress=False).metrics()["em"].mean == 1.0


def test_policy_against_fixed_programs(renderer: Renderer, tokenizer: Any) -> None:
    asked = questions(len(CAPITALS))
    config = RolloutConfig(max_turns=2, max_new_tokens=128, temperature=1.0, batch_size=4)
    sampler = ScriptedSampler(tokenizer, reader)
    policy = evaluate(Policy(renderer, sampler, FakeExecutor(), config), asked, progress=False)
    best = best_k(lambda k: FixedProgram(renderer, sampler, FakeExecutor(), k=k), [1, 3], asked, progress=False)
    got = compare(policy, best.results[best.k])
    assert best.k == 1
    assert (got.difference.mean, got.a, got.b) == (0.0, "policy", "fixed bm25 k=1")
    assert not got.difference.excludes_zero
    assert "k" in got.differing
