import concurrent.futures
import math
import random
import threading
import time

import pytest
from helpers_rollouts import ScriptedSampler, TableExecutor, question
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import patience

from rpl.core.errors import ConfigError, RetrieverError
from rpl.core.records import Rollout, Trace, Turn
from rpl.environment.faults import VoidRate, binomial_tail
from rpl.policy.renderer import Action, Renderer
from rpl.rollouts.background import BackgroundPrograms
from rpl.rollouts.loop import run_rollouts
from rpl.rollouts.requests import RolloutConfig, RolloutRequest, RolloutTiming
from rpl.sampling.hf.sampler import HFSampler
from rpl.sampling.sampler import SamplingParams
from rpl.sampling.single_turn import complete

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


def test_requests_come_back_in_order_and_equal_prompts_start_together(run):
    texts = ["One?", "Two?", "One?", "Two?", "One?", "Three?"]
    requests = [RolloutRequest(question(t, id=t), f"g{t}", i, seed=i) for i, t in enumerate(texts)]
    told = []
    rollouts, sampler, _ = run(lambda seed, turn: answer(seed), requests, batch_size=3, progress=told.append)
    assert [r.question_id for r in rollouts] == texts
    assert [r.answer for r in rollouts] == [str(i) for i in range(6)]
    assert [(r.group_id, r.sample_index, r.seed) for r in rollouts] == [(f"g{t}", i, i) for i, t in enumerate(texts)]
    assert list(sampler.transcripts) == [0, 2, 4, 1, 3, 5]
    assert sampler.flights == [3, 3]
    assert sum(told) == 6


def test_a_finished_rollout_gives_its_place_to_the_next(run):
    """Rollouts of one, two and three turns: a place is taken again at once, and never more than two are in flight."""
    requests = [RolloutRequest(question(), "g", i, seed=i) for i in range(9)]
    rollouts, sampler, _ = run(
        lambda seed, turn: answer("x") if turn == seed % 3 else program(f"print({turn + 1})"), requests, batch_size=2
    )
    assert [len(r.turns) for r in rollouts] == [1, 2, 3] * 3
    assert max(sampler.flights) == 2
    in_chunks = 2 + 3 + 3 + 3 + 3  # what pairs would take that wait for one another, without a pause for programs
    assert sum(sampler.flights) == 18
    assert len(sampler.flights) < in_chunks + 4


def test_equal_programs_of_a_question_run_once(run):
    requests = [RolloutRequest(question(), "g", i, seed=i) for i in range(5)]
    lines = [program("print(1)"), answer("France")]
    for batch_size in (5, 2):
        rollouts, _, executor = run(lambda seed, turn: lines[turn], requests, batch_size=batch_size)
        assert len(executor.jobs) == 1
        assert all(r.traces[0].printed_ids == ("p1",) for r in rollouts)
    requests.append(RolloutRequest(question("Other?"), "h", 0, seed=9))
    _, _, executor = run(lambda seed, turn: lines[turn], requests)
    assert sorted(q for _, q in executor.jobs) == ["Other?", "Where is Lyon?"]


def test_a_run_that_infrastructure_failed_is_tried_again_for_the_next_rollout(run):
    class Mending(TableExecutor):
        def run_many(self, jobs):
            traces = super().run_many(jobs)
            self.infra = ()
            return traces

    requests = [RolloutRequest(question(), "g", i, seed=i) for i in range(3)]
    lines = [program("print(1)"), answer("France")]
    executor = Mending(TABLE, infra=("print(1)",))
    rollouts, _, _ = run(lambda seed, turn: lines[turn], requests, executor=executor, batch_size=1)
    assert [r.infra_error for r in rollouts] == ["server down", None, None]
    assert len(executor.jobs) == 2


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


class SteppedSampler(ScriptedSampler):
    """Takes `steps(seed, turn)` calls of `advance` for a completion, and counts the calls in which it decoded."""

    def __init__(self, script, tokenizer, steps):
        super().__init__(script, tokenizer)
        self.steps, self.decoded = steps, 0

    def open(self):
        session = super().open()
        left, submit, advance = {}, session.submit, session.advance

        def stepped_submit(row, params):
            left[row] = self.steps(session.seeds[row], session.turns[row])
            submit(row, params)

        def stepped_advance():
            self.decoded += bool(session.params)
            held = dict(session.params)
            for row in held:
                left[row] -= 1
                if left[row] > 0:
                    del session.params[row]
            waiting = {row: params for row, params in held.items() if row not in session.params}
            done = advance()
            session.params.update(waiting)
            return done

        session.submit, session.advance = stepped_submit, stepped_advance
        return session


def overlapping(tokenizer, executor, loop=run_rollouts):
    """One rollout writes a program at once, while another writes for long."""
    sampler = SteppedSampler(
        lambda seed, turn: program("print(1)") if (seed, turn) == (0, 0) else answer("x"),
        tokenizer,
        lambda seed, turn: 1 if seed == 0 else 6,
    )
    executor.sampler = sampler
    requests = [RolloutRequest(question(), "g", i, seed=i) for i in range(2)]
    timing = RolloutTiming()
    rollouts = loop(
        requests, renderer=Renderer(tokenizer), sampler=sampler, executor=executor,
        config=RolloutConfig(max_context_tokens=4000), timing=timing,
    )  # fmt: skip
    return rollouts, timing


class Watching(TableExecutor):
    """Its program ends when the sampler has decoded on, and fails if it does not in time."""

    patience_s = 30.0

    def run_many(self, jobs):
        before, deadline = self.sampler.decoded, time.monotonic() + patience(self.patience_s)
        while self.sampler.decoded == before:
            if time.monotonic() > deadline:
                raise RetrieverError("nothing was decoded meanwhile")
            time.sleep(0.001)
        return super().run_many(jobs)


def test_programs_run_while_others_are_decoded(tokenizer):
    rollouts, _ = overlapping(tokenizer, Watching(TABLE))
    assert [r.answer for r in rollouts] == ["x", "x"]


def test_a_loop_in_lock_step_would_fail_that_test(tokenizer, monkeypatch):
    start = BackgroundPrograms.start

    def start_and_wait(self, jobs):
        start(self, jobs)
        concurrent.futures.wait([self._future])

    monkeypatch.setattr(BackgroundPrograms, "start", start_and_wait)
    monkeypatch.setattr(Watching, "patience_s", 0.1)
    with pytest.raises(RetrieverError, match="nothing was decoded"):
        overlapping(tokenizer, Watching(TABLE))


class Slow(TableExecutor):
    """Takes some time, at random if so told."""

    def __init__(self, seconds, rng=None):
        super().__init__({**TABLE, **{f"print({i}, {j})": f"{i} and {j}" for i in range(50) for j in range(4)}})
        self.seconds, self.rng = seconds, rng

    def run_many(self, jobs):
        time.sleep(self.seconds * (self.rng.random() if self.rng else 1.0))
        return super().run_many(jobs)


def test_times_and_tokens_are_reported(tokenizer):
    rollouts, timing = overlapping(tokenizer, Slow(0.2))
    assert timing.execute_s >= 0.2
    assert timing.wait_s > 0  # a scripted sampler decodes in no time
    assert timing.generate_s + timing.wait_s < timing.wall_s
    assert timing.generated_tokens == sum(len(t.completion_ids) for r in rollouts for t in r.turns)
    assert timing.prompt_tokens == sum(len(r.prompt_ids) for r in rollouts)
    assert timing.observation_tokens == sum(len(t.observation_ids) for r in rollouts for t in r.turns) > 0


def test_waiting_is_not_counted_while_others_are_decoded(tokenizer):
    executor = Slow(0.1)
    sampler = SteppedSampler(
        lambda seed, turn: program("print(1)") if (seed, turn) == (0, 0) else answer("x"),
        tokenizer,
        lambda seed, turn: 1 if seed == 0 else 6,
    )
    executor.sampler, open_session = sampler, sampler.open

    def slowly():
        session = open_session()
        advance = session.advance

        def slow():
            time.sleep(0.25)
            return advance()

        session.advance = slow
        return session

    sampler.open = slowly
    timing = RolloutTiming()
    run_rollouts(
        [RolloutRequest(question(), "g", i, seed=i) for i in range(2)], renderer=Renderer(tokenizer), sampler=sampler,
        executor=executor, config=RolloutConfig(max_context_tokens=4000), timing=timing,
    )  # fmt: skip
    assert timing.execute_s >= 0.1
    assert timing.wait_s < timing.execute_s / 2
    assert timing.generate_s > 1.5


def random_walk(seed, turn):
    """Rollouts of one to three turns whose programs differ; a function of the seed alone."""
    return answer(seed) if turn == seed % 3 else program(f"print({seed}, {turn})")


@pytest.mark.parametrize("batch_size", [3, 16])
def test_delays_of_programs_change_nothing(tokenizer, batch_size):
    requests = [RolloutRequest(question(), "g", i, seed=i) for i in range(16)]

    def once(executor):
        sampler = SteppedSampler(random_walk, tokenizer, lambda seed, turn: 1 + (seed * 7 + turn) % 4)
        rollouts = run_rollouts(
            requests, renderer=Renderer(tokenizer), sampler=sampler, executor=executor,
            config=RolloutConfig(max_context_tokens=4000, batch_size=batch_size),
        )  # fmt: skip
        return rollouts, sampler.flights, executor.jobs

    expected = once(Slow(0.0))
    for seed in range(3):
        assert once(Slow(0.02, random.Random(seed))) == expected


def test_delays_of_programs_change_no_bit_of_the_real_sampler(tiny):
    """Also not what is decoded together, which would show in the last bits of the log-probabilities."""
    model, tokenizer = tiny
    sampler = HFSampler(stride=2)
    sampler.connect(model, tokenizer)
    requests = [RolloutRequest(question(f"Where is city {i % 3}?"), "g", i, seed=i) for i in range(10)]
    renderer = Renderer(tokenizer)
    # Random weights write no tags: every completion counts as a program, and a rollout ends with its turns.
    renderer.parse = lambda text, reason: Action("program", f"print({len(text) % 50}, {text.count('a') % 4})")

    def once(executor):
        config = RolloutConfig(max_new_tokens=12, batch_size=4, max_context_tokens=900)
        return run_rollouts(requests, renderer=renderer, sampler=sampler, executor=executor, config=config)

    expected = once(Slow(0.0))
    assert {len(r.turns) for r in expected} == {3}
    assert once(Slow(0.01, random.Random(1))) == expected


@pytest.mark.parametrize("error", [RetrieverError("no index"), ValueError("a bug"), KeyboardInterrupt()])
def test_exceptions_of_programs_and_sampler_come_out_as_they_are_and_leave_no_thread(tokenizer, error):
    class Failing(TableExecutor):
        def run_many(self, jobs):
            raise error

    before = set(threading.enumerate())
    with pytest.raises(type(error)) as caught:
        overlapping(tokenizer, Failing(TABLE))
    assert caught.value is error
    assert set(threading.enumerate()) == before

    def fail(seed, turn):
        if turn == 1:
            raise error
        return program("print(1)")

    with pytest.raises(type(error)) as caught:
        run_rollouts(
            [RolloutRequest(question(), "g", 0, 0)], renderer=Renderer(tokenizer),
            sampler=ScriptedSampler(fail, tokenizer), executor=Slow(0.05), config=RolloutConfig(),
        )  # fmt: skip
    assert caught.value is error
    assert set(threading.enumerate()) == before


def test_one_turn_keeps_to_its_batch_size_and_order(tokenizer):
    sampler = ScriptedSampler(lambda seed, turn: f"say {seed}", tokenizer)
    done = complete(sampler, [[5]] * 7, range(7), SamplingParams(), batch_size=3)
    assert [c.text for c in done] == [f"say {seed}" for seed in range(7)]
    assert sampler.flights == [3, 3, 1]
    assert complete(sampler, [], [], SamplingParams(), batch_size=3) == []


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
    guard = VoidRate(max_rate=0.5)
    kept = guard.check([rollout(False), rollout(True), rollout(False)])
    assert [r.infra_error for r in kept] == [None, None]
    assert guard.rate == pytest.approx(1 / 3)


def test_the_guard_forgives_what_may_be_chance_and_stops_at_what_is_not():
    guard = VoidRate()
    guard.check([rollout(True)] * 2 + [rollout(False)] * 30)
    with pytest.raises(RetrieverError, match=r"5 of 64 .*allowed 0.50%.*no route to host"):
        guard.check([rollout(True)] * 3 + [rollout(False)] * 29)
    assert VoidRate(max_rate=0.2).check([rollout(True)] * 5 + [rollout(False)] * 27)


def test_the_stopping_rule_is_a_binomial_test():
    def slow(count, trials, rate):
        return sum(math.comb(trials, i) * rate**i * (1 - rate) ** (trials - i) for i in range(count, trials + 1))

    for count, trials, rate in ((1, 8, 0.3), (3, 32, 0.005), (7, 256, 0.005)):
        assert binomial_tail(count, trials, rate) == pytest.approx(slow(count, trials, rate), rel=1e-9)
        assert binomial_tail(count, trials, rate) != pytest.approx(slow(count + 1, trials, rate), rel=1e-9)


def test_a_batch_that_is_void_as_a_whole_stops_the_run_at_once():
    with pytest.raises(RetrieverError, match=r"all 2 rollouts.*no route to host \(2×\)"):
        VoidRate(max_rate=1.0).check([rollout(True)] * 2)
    assert VoidRate().check([]) == []


def test_the_guard_checks_its_settings():
    with pytest.raises(ConfigError, match="max_rate"):
        VoidRate(max_rate=2.0)
