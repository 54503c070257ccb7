"""Cutting a schedule to a budget, and keeping it while it runs: rules alone, with a clock that is moved by hand."""

import itertools
import json

import pytest

from rpl.estimate.schedule import Costs
from rpl.estimate.training import ModelShape, Settings
from rpl.schedule import clock as clock_module
from rpl.schedule.budget import FRACTIONS, SCALES, Amounts, fit_budget, phase_share, scaled
from rpl.schedule.clock import Clock, Limit, affordable

KINDS, FULL = ("rl", "harvest", "sft", "rl", "eval"), (1, 600, 108, 6, 300)
SHAPE = ModelShape(
    parameters=134_515_008, vocab=49152, hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3, head_dim=64
)


def quickstart_seconds(flops):
    costs = Costs(SHAPE.token_cost, Settings(), flops)

    def total(amounts):
        start, harvested, steps, iterations, evaluated = amounts.phases
        return (
            costs.training(costs.work(True, 4, 4), start)
            + costs.harvest(harvested, 1, 10)
            + costs.training(costs.work(False, 8), steps)
            + costs.training(costs.work(True, 8, 6), iterations)
            + costs.evaluation(evaluated, 1 + (iterations > 0), (1, 3, 5), True)
            + (costs.index(3000) if amounts.dense else 0)
        )

    return total


def cut(minutes, flops):
    return fit_budget(KINDS, FULL, True, quickstart_seconds(flops), 60 * minutes)


def test_the_whole_schedule_is_scale_one():
    assert scaled(KINDS, FULL, True, 1.0) == Amounts(FULL, True, 1.0)
    assert cut(10_000, 6e10) == Amounts(FULL, True, 1.0)


def test_the_schedule_that_is_known_to_work_on_a_slow_machine():
    amounts = scaled(KINDS, FULL, True, 0.25)
    assert amounts.phases == (0, 198, 25, 0, 60)
    assert not amounts.dense
    assert cut(20, 6e10).phases[2] >= 20
    assert cut(20, 6e10).phases[4] >= 40


def test_evaluation_goes_first_then_rl_and_dense_then_harvest_and_sft():
    def gone(scale):
        amounts = scaled(KINDS, FULL, True, scale)
        return {kind for kind, now, full in zip(KINDS, amounts.phases, FULL, strict=True) if now < full} | (
            set() if amounts.dense else {"dense"}
        )

    assert gone(0.8) == {"eval"}
    assert gone(0.7) == {"eval", "rl", "harvest", "sft"}
    assert gone(0.59) == {"eval", "rl", "harvest", "sft", "dense"}
    assert scaled(KINDS, FULL, True, 0.5).phases[3] == 0 < scaled(KINDS, FULL, True, 0.51).phases[3]


def test_no_amount_falls_with_budget_or_rate():
    minutes, rates = (8, 10, 15, 20, 40, 80, 160), (3e10, 6e10, 1e11, 4e11)
    found = {(m, r): cut(m, r) for m in minutes for r in rates}

    def at_most(less, more):
        return less is None or (
            more is not None
            and all(a <= b for a, b in zip(less.phases, more.phases, strict=True))
            and less.dense <= more.dense
        )

    assert all(at_most(found[a, r], found[b, r]) for r in rates for a, b in itertools.pairwise(minutes))
    assert all(at_most(found[m, a], found[m, b]) for m in minutes for a, b in itertools.pairwise(rates))
    assert not at_most(found[160, 4e11], found[20, 6e10])
    assert cut(8, 3e9) is None
    for fractions in FRACTIONS.values():
        assert len(fractions) == len(SCALES)
        assert list(fractions) == sorted(fractions)


@pytest.mark.parametrize("flops", [3e10, 6e10, 2e11, 2e12])
def test_an_estimate_never_exceeds_the_budget(flops):
    for minutes in (5, 10, 20, 60):
        amounts = cut(minutes, flops)
        if amounts is None:
            assert quickstart_seconds(flops)(scaled(KINDS, FULL, True, 0.0)) > 60 * minutes
        else:
            assert quickstart_seconds(flops)(amounts) <= 60 * minutes


def test_what_is_left_is_dealt_out_by_estimate():
    assert phase_share(100, [1, 3]) == 25
    assert phase_share(-5, [1, 3]) == 0
    assert phase_share(100, [0, 0]) == 0


@pytest.fixture
def now(monkeypatch):
    """A monotonic clock that stands still until a test moves it."""
    time = [1000.0]
    monkeypatch.setattr(clock_module.time, "monotonic", lambda: time[0])
    return time


def test_time_of_all_processes_counts_and_a_phase_keeps_its_start(tmp_path, now):
    with Clock(tmp_path / "clock.json") as clock:
        now[0] += 60
        assert clock.begin("rl") == 60
        now[0] += 30
    now[0] += 10_000  # nobody worked
    with Clock(tmp_path / "clock.json") as clock:
        assert clock.spent_s == 90
        now[0] += 10
        assert clock.begin("rl") == 60
        assert clock.begin("sft") == 100


def test_a_killed_process_has_its_time_counted(tmp_path, monkeypatch):
    noted = clock_module.threading.Event()
    monkeypatch.setattr(clock_module, "BEAT_S", 0.001)
    clock = Clock(tmp_path / "clock.json")
    plain = clock.note
    monkeypatch.setattr(clock, "note", lambda: (plain(), noted.set()))
    with clock:
        assert noted.wait(60)
        assert json.loads((tmp_path / "clock.json").read_text())["spent_s"] >= 0


def test_a_phase_gets_its_share_and_a_late_one_shortens_the_others(tmp_path, now):
    with Clock(tmp_path / "clock.json") as clock:
        harvest = Limit(clock, "harvest", 20, [300, 600, 300])
        assert harvest.budget_s == 300
        assert harvest.trainer == {"max_time": {"seconds": 300}}
        now[0] += 299
        assert not harvest.reached()
        now[0] += 301  # twice its time
        assert harvest.reached()
        assert Limit(clock, "sft", 20, [600, 300]).budget_s == 400
        free = Limit(clock, "eval", None, [300])
        assert (free.trainer, free.reached()) == ({}, False)


@pytest.mark.parametrize(("each", "count"), [(1.0, 300), (4.0, 126), (1000.0, 20)])
def test_an_evaluation_asks_as_many_questions_as_there_is_time_for(each, count, tmp_path, now):
    asked = []

    def pilot(number):
        asked.append(number)
        now[0] += each * number

    with Clock(tmp_path / "clock.json") as clock:
        limit = Limit(clock, "eval", 10, [600])
        assert affordable(tmp_path / "questions.json", 300, limit, pilot) == count
        now[0] += 10_000
        assert affordable(tmp_path / "questions.json", 300, limit, pilot) == count  # a resumed run asks as many
    assert asked == [24]
