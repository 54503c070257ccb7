import pytest
from repair_fakes import SEED, ScriptedExecutor, ScriptedSampler, TextRenderer, a_question, a_trace, lookup, printing

from rpl.core.errors import ConfigError, RetrieverError
from rpl.core.seeds import derive_seed
from rpl.mutation.verify import GoldVerifier
from rpl.programs.grammar import parse
from rpl.repair.control import ControlConfig, ControlTask, resample
from rpl.sampling.opening import OpenedPolicy

GOOD = "for p in bm25('Lyon', k=2):\n    print(p)"
SUCCESS = printing(("'Lyon'", ("city", "land")), ("k=7", ("city",)))


def tasks(*budgets):
    return [ControlTask(a_question(id=f"q{i}"), parse(SEED), budget) for i, budget in enumerate(budgets)]


PLAIN = ControlConfig()


def run(wanted, draw, config=PLAIN, script=SUCCESS):
    """`draw(question id, index)` is the text of a draw."""
    known = {derive_seed(5, "control", t.question.id, i): (t.question.id, i) for t in wanted for i in range(500)}
    sampler = ScriptedSampler(lambda _, seed: draw(*known[seed]))
    executor = ScriptedExecutor(script)
    pairs = resample(
        wanted,
        policy=OpenedPolicy("", None, TextRenderer(), sampler, None, {}),
        executor=executor,
        verifier=GoldVerifier(lookup),
        config=config,
        max_printed_tokens=100,
        seed=5,
    )
    executor.best = [trace for _, trace in pairs]
    return [control for control, _ in pairs], sampler, executor


def program(text):
    return f"I will search.<program>\n{text}\n</program>"


def distinct(_, index):
    return program(f"for p in bm25(question, k={index + 2}):\n    print(p)")


def test_the_control_spends_exactly_the_budget_of_the_repair():
    results, _, executor = run(tasks(7, 3), distinct)
    assert [r.executions for r in results] == [7, 3]
    assert [r.draws for r in results] == [7, 3]
    assert [r.tokens for r in results] == [21, 9]
    assert all(r.child is None and r.first_verified is None for r in results)
    assert len(executor.jobs) <= 10


def test_it_stops_at_the_first_verified_sample():
    results, _, executor = run(tasks(20), lambda q, i: program(GOOD) if i in (4, 9) else distinct(q, i))
    [result] = results
    assert (result.first_verified, result.executions, result.draws, result.tokens) == (4, 5, 5, 15)
    assert result.child == GOOD
    assert executor.best[0].source == GOOD
    assert result.coverage == 1.0


def test_what_is_no_program_uses_up_an_execution():
    texts = ["no tags at all", program("import os"), program("for p in"), program(GOOD)]
    [result] = run(tasks(4), lambda _, i: texts[i])[0]
    assert (result.executions, result.first_verified) == (4, 3)
    [short] = run(tasks(3), lambda _, i: texts[i])[0]
    assert (short.executions, short.child) == (3, None)


def test_repeats_are_free_but_draws_are_bounded():
    [result], _, executor = run(tasks(5), lambda *_: program(SEED.replace("k=1", "k = 1")))
    assert (result.executions, result.draws, executor.jobs) == (0, 10, [])
    [result], _, executor = run(tasks(5), lambda *_: distinct("", 0), ControlConfig(max_draws_factor=3))
    assert (result.executions, result.draws, len(executor.jobs)) == (1, 15, 1)


def test_the_best_sample_is_kept_for_the_benefit():
    [result], _, executor = run(tasks(8), distinct)
    assert result.coverage == 0.5
    assert "k=7" in executor.best[0].source
    assert result.child is None


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_results_do_not_depend_on_the_batch(batch_size):
    def draw(question_id, index):
        return program(GOOD) if (question_id, index) in {("q1", 2), ("q2", 0)} else distinct("", index)

    expected = run(tasks(6, 6, 6), draw)[0]
    assert run(tasks(6, 6, 6), draw, ControlConfig(batch_size=batch_size))[0] == expected
    assert [r.first_verified for r in expected] == [None, 2, 0]


def test_each_draw_has_its_own_seed():
    _, sampler, _ = run(tasks(9, 9), distinct)
    assert len(set(sampler.seeds)) == len(sampler.seeds)


def test_an_infrastructure_fault_propagates():
    with pytest.raises(RetrieverError, match="index gone"):
        run(tasks(2), distinct, script=lambda source: a_trace(source, infra_error="index gone"))


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"max_new_tokens": 0}, {"max_draws_factor": 0}])
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ConfigError, match=f"control.{next(iter(wrong))}"):
        ControlConfig(**wrong)
