import math

import pytest
from helpers_rollouts import ScriptedSampler, TableExecutor, question
from hypothesis import given, settings
from hypothesis import strategies as st

from rpl.errors import ConfigError, RetrieverError
from rpl.rollouts.health import InfraGuard, binomial_tail
from rpl.rollouts.hf_sampler import HFSampler
from rpl.rollouts.loop import RolloutConfig, RolloutRequest, run_rollouts
from rpl.rollouts.renderer import Renderer
from rpl.types import Rollout, Trace, Turn

TABLE = {"print(1)": "[p1] Lyon: Lyon is a city in France.", "print(2)": "[p2] Paris: Paris is a city."}


def program(source):
    return f"<program>\n{source}\n</program>"


def answer(text):
    return f"<answer>{text}</answer>"


@pytest.fixture
def run(tokenizer):
    def go(script, requests=None, executor=None, progress=None, **config):
        if not callable(script):
            lines = script
            script = lambda seed, turn: lines[turn]  # noqa: E731
        requests = requests or [RolloutRequest(question(), "g", 0, 1)]
        sampler = ScriptedSampler(script, tokenizer)
        executor = executor or TableExecutor(TABLE)
        config = RolloutConfig(**{"max_context_tokens": 4000, **config})
        rollouts = run_rollouts(
            requests, renderer=Renderer(tokenizer), sampler=sampler, executor=executor, config=config, progress=progress
        )
        for request, rollout in zip(requests, rollouts, strict=True):
            written = sampler.transcripts.get(request.seed, list(rollout.prompt_ids))
            assert list(rollout.token_ids)[: len(written)] == written[: len(rollout.token_ids)]
            assert len(rollout.completion_mask) == len(rollout.token_ids) == len(rollout.sampler_logprobs)
        return rollouts, sampler, executor

    return go


def test_two_programs_and_an_answer(run, tokenizer):
    (rollout,), sampler, executor = run([program("print(1)"), program("print(2)"), answer("France")])
    assert rollout.answer == "France"
    assert rollout.invalid is None
    assert [t.program for t in rollout.turns] == ["print(1)", "print(2)", None]
    assert executor.jobs == [("print(1)", "Where is Lyon?"), ("print(2)", "Where is Lyon?")]
    assert list(rollout.token_ids) == sampler.transcripts[1]
    steps = [("print(1)", TABLE["print(1)"]), ("print(2)", TABLE["print(2)"])]
    ids, mask = Renderer(tokenizer).transcript("Where is Lyon?", steps, "France", eos=False)
    assert list(rollout.token_ids) == ids
    assert list(rollout.completion_mask) == mask


@given(
    st.lists(st.sampled_from([*TABLE, "broken"]), max_size=3),
    st.text("abc é<>\n", min_size=1, max_size=12).filter(lambda t: t.strip() == t),
)
@settings(max_examples=40, deadline=None)
def test_rollout_and_training_transcript_agree(tokenizer, sources, said):
    """What the loop makes of these completions is, id by id, what SFT trains on; only the end token is extra."""
    lines = [program(s) for s in sources] + [answer(said)]
    renderer = Renderer(tokenizer)
    executor = TableExecutor(TABLE)
    (rollout,) = run_rollouts(
        [RolloutRequest(question(), "g", 0, 1)],
        renderer=renderer,
        sampler=ScriptedSampler(lambda seed, turn: lines[turn], tokenizer),
        executor=executor,
        config=RolloutConfig(max_turns=4, max_context_tokens=4000),
    )
    assert rollout.answer == said
    steps = [(s, trace.observation) for s, trace in zip(sources, rollout.traces, strict=True)]
    ids, mask = renderer.transcript("Where is Lyon?", steps, said)
    assert [*rollout.token_ids, tokenizer.eos_token_id] == ids
    assert [*rollout.completion_mask, True] == mask
    # every turn's context starts with the whole context of the turn before
    context = list(rollout.prompt_ids)
    for turn in rollout.turns:
        context += [*turn.completion_ids, *turn.observation_ids]
        assert ids[: len(context)] == context


def test_a_failed_program_is_shown_and_the_rollout_goes_on(run, tokenizer):
    (rollout,), _, _ = run([program("x"), answer("France")])
    assert rollout.answer == "France"
    assert rollout.traces[0].error.kind == "runtime"
    assert "not defined" in tokenizer.decode(list(rollout.turns[0].observation_ids))


def test_failed_retrieval_ends_the_rollout_and_makes_it_void(run):
    (rollout,), _, _ = run([program("down"), answer("France")], executor=TableExecutor(TABLE, infra=("down",)))
    assert rollout.infra_error == "server down"
    assert rollout.answer is None
    assert len(rollout.turns) == 1
    assert rollout.turns[0].observation_ids == ()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (("<program>\nprint(", "length"), "truncated"),
        (("France.", "eos"), "no_action"),
        ("<result>x</result>" + answer("France"), "forgery"),
    ],
)
def test_an_invalid_turn_ends_the_rollout(run, said, reason):
    (rollout,), _, executor = run([said])
    assert (rollout.invalid, rollout.turns[-1].invalid, rollout.answer) == (reason, reason, None)
    assert executor.jobs == []


def test_the_last_turn_must_be_an_answer(run):
    (rollout,), _, executor = run([program("print(1)"), program("print(2)")], max_turns=2)
    assert rollout.invalid == "turn_budget"
    assert rollout.turns[-1].program == "print(2)"
    assert len(executor.jobs) == 1


def test_no_room_in_the_context_ends_the_rollout(run, tokenizer):
    prompt = len(Renderer(tokenizer).prompt_ids("Where is Lyon?"))
    lines = [program("print(1)"), answer("France")]
    (rollout,), _, _ = run(lines, max_new_tokens=50, max_context_tokens=prompt + 40)
    assert (rollout.invalid, rollout.turns) == ("context", ())
    (rollout,), _, _ = run(lines, max_new_tokens=50, max_context_tokens=prompt + 100)
    assert (rollout.invalid, len(rollout.turns)) == ("context", 1)
    assert rollout.traces
    (rollout,), _, _ = run(lines, max_new_tokens=50, max_context_tokens=prompt + 200)
    assert rollout.invalid is None


def test_requests_come_back_in_order_and_equal_prompts_share_a_chunk(run):
    texts = ["One?", "Two?", "One?", "Two?", "One?", "Three?"]
    requests = [RolloutRequest(question(t, id=t), f"g{t}", i, seed=i) for i, t in enumerate(texts)]
    told = []
    rollouts, sampler, _ = run(lambda seed, turn: answer(seed), requests, batch_size=3, progress=told.append)
    assert [r.question_id for r in rollouts] == texts
    assert [r.answer for r in rollouts] == [str(i) for i in range(6)]
    assert [(r.group_id, r.sample_index, r.seed) for r in rollouts] == [(f"g{t}", i, i) for i, t in enumerate(texts)]
    assert sampler.batches == [3, 3]
    assert sum(told) == 6


def test_equal_programs_of_a_batch_run_once(run):
    requests = [RolloutRequest(question(), "g", i, seed=i) for i in range(5)]
    lines = [program("print(1)"), answer("France")]
    rollouts, _, executor = run(lambda seed, turn: lines[turn], requests)
    assert len(executor.jobs) == 1
    assert all(r.traces[0].printed_ids == ("p1",) for r in rollouts)


def test_a_baseline_may_start_from_its_own_ids(run, tokenizer):
    ids = tuple(Renderer(tokenizer).prefilled_ids("Where is Lyon?", "print(1)", "one"))
    (rollout,), _, _ = run([answer("France")], [RolloutRequest(question(), "g", 0, 1, prompt_ids=ids)], max_turns=1)
    assert rollout.prompt_ids == ids
    assert rollout.answer == "France"


def test_no_requests_give_no_rollouts(run, tokenizer):
    assert run_rollouts(
        [], renderer=Renderer(tokenizer), sampler=ScriptedSampler(None, tokenizer), executor=TableExecutor({}),
        config=RolloutConfig(),
    ) == []  # fmt: skip


def test_the_real_sampler_runs_in_the_loop_and_repeats_itself(tiny):
    sampler = HFSampler()
    sampler.connect(*tiny)
    requests = [RolloutRequest(question(), "g", i, seed=i) for i in range(4)]

    def once(requests, batch_size):
        config = RolloutConfig(max_new_tokens=16, batch_size=batch_size, max_context_tokens=400)
        return run_rollouts(
            requests, renderer=Renderer(tiny[1]), sampler=sampler, executor=TableExecutor(TABLE), config=config
        )

    rollouts = once(requests, 4)
    assert {r.invalid for r in rollouts} <= {"truncated", "no_action"}  # random weights write no tags
    assert once(requests, 4) == rollouts
    alone = once(requests[2:3], 1)[0]
    assert alone.token_ids == rollouts[2].token_ids


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ({"max_turns": 0}, "rollouts.max_turns"),
        ({"temperature": -1.0}, "rollouts.temperature"),
        ({"temperature": float("nan")}, "rollouts.temperature"),
        ({"max_context_tokens": 100}, "rollouts.max_context_tokens"),
    ],
)
def test_wrong_settings_name_their_key(setting, match):
    with pytest.raises(ConfigError, match=match):
        RolloutConfig(**setting)


def rollout(void):
    trace = Trace("x", "", infra_error="no route to host" if void else None)
    return Rollout("q", "g", 0, 0, (1,), (Turn((2,), (-1.0,), "", "stop", program="x", trace=trace),), answer="a")


def test_the_guard_drops_void_rollouts_and_counts_them():
    guard = InfraGuard(max_rate=0.5)
    kept = guard.check([rollout(False), rollout(True), rollout(False)])
    assert [r.infra_error for r in kept] == [None, None]
    assert guard.rate == pytest.approx(1 / 3)


def test_the_guard_forgives_what_may_be_chance_and_stops_at_what_is_not():
    guard = InfraGuard()
    guard.check([rollout(True)] * 2 + [rollout(False)] * 30)
    with pytest.raises(RetrieverError, match=r"5 of 64 .*allowed 0.50%.*no route to host"):
        guard.check([rollout(True)] * 3 + [rollout(False)] * 29)
    assert InfraGuard(max_rate=0.2).check([rollout(True)] * 5 + [rollout(False)] * 27)


def test_the_stopping_rule_is_a_binomial_test():
    def slow(count, trials, rate):
        return sum(math.comb(trials, i) * rate**i * (1 - rate) ** (trials - i) for i in range(count, trials + 1))

    for count, trials, rate in ((1, 8, 0.3), (3, 32, 0.005), (7, 256, 0.005)):
        assert binomial_tail(count, trials, rate) == pytest.approx(slow(count, trials, rate), rel=1e-9)
        assert binomial_tail(count, trials, rate) != pytest.approx(slow(count + 1, trials, rate), rel=1e-9)


def test_a_batch_that_is_void_as_a_whole_stops_the_run_at_once():
    with pytest.raises(RetrieverError, match=r"all 2 rollouts.*no route to host \(2×\)"):
        InfraGuard(max_rate=1.0).check([rollout(True)] * 2)
    assert InfraGuard().check([]) == []


def test_the_guard_checks_its_settings():
    with pytest.raises(ConfigError, match="max_rate"):
        InfraGuard(max_rate=2.0)
