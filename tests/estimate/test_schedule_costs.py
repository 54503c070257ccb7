"""What phases of a schedule cost: proportions, and a whole run that was timed."""

import pytest

from rpl.estimate.schedule import FRAGMENTED, SEARCH_S, START_S, Costs, peak_bytes
from rpl.estimate.training import ModelShape, Settings, memory, peaks

SMOLLM2 = ModelShape(
    parameters=134_515_008, vocab=49152, hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3, head_dim=64
)


def costs(flops=1e11, mixed=False):
    return Costs(SMOLLM2.token_cost, Settings(mixed=mixed), flops)


def test_phase_times_scale_with_the_machine_and_the_work():
    def rl(steps, flops=1e11):
        each = costs(flops)
        return each.training(each.work(True, 8, 4), steps)

    assert rl(0) == 0
    assert rl(20) - START_S == pytest.approx(2 * (rl(10) - START_S))
    assert rl(10, flops=2e11) - START_S == pytest.approx((rl(10) - START_S) / 2)
    assert costs().evaluation(100, 2, (1, 3), True) > costs().evaluation(100, 1, (1, 3), True)
    assert costs().evaluation(100, 1, (1, 3), True) > costs().evaluation(100, 1, (1, 3), False) > START_S
    assert costs().harvest(100, 1, 0) > START_S + 100 * SEARCH_S
    assert costs().harvest(100, 1, 10) == costs().harvest(100, 3, 0)  # 20 programs for each of ten
    assert costs().index(2000) == pytest.approx(2 * costs().index(1000))


def test_a_run_that_was_timed():
    """Two cores of 30 GFLOP/s in float32: 200 questions harvested, 25 SFT steps, 60 evaluated, in 19 minutes."""

    def minutes(mixed):
        each = costs(6e10, mixed)
        training = each.training(each.work(False, 8), 25)
        return (each.harvest(200, 1, 10) + training + each.evaluation(60, 1, (1, 3, 5), True)) / 60

    assert minutes(mixed=False) == pytest.approx(19, rel=0.25)
    assert minutes(mixed=True) != pytest.approx(19, rel=0.25)  # the shares of bfloat16 are far off


def test_memory_is_that_of_the_hungriest_phase():
    works = [costs().work(True, 8, 4), costs().work(False, 16)]
    alone = [peak_bytes(SMOLLM2, Settings(), [work]) for work in works]
    assert peak_bytes(SMOLLM2, Settings(), works) == max(alone)
    assert alone[0] == pytest.approx(FRAGMENTED * max(peaks(memory(SMOLLM2, Settings(), works[0])).values()))
    assert peak_bytes(SMOLLM2, Settings(), []) == pytest.approx(FRAGMENTED * 4 * SMOLLM2.parameters)
