import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rpl.core.errors import ConfigError
from rpl.credit.advantages import group_advantages

KINDS = ["grpo", "dr_grpo", "rloo"]


def loop_reference(rewards, groups, kind, eps=1e-6):
    values, keep = [], []
    for i, group in enumerate(groups):
        mine = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        if all(r == mine[0] for r in mine):
            values.append(0.0)
            keep.append(False)
            continue
        keep.append(True)
        if kind == "rloo":
            others = [r for j, (r, g) in enumerate(zip(rewards, groups, strict=True)) if g == group and j != i]
            values.append(rewards[i] - statistics.fmean(others))
        elif kind == "grpo":
            values.append((rewards[i] - statistics.fmean(mine)) / (statistics.stdev(mine) + eps))
        else:
            values.append(rewards[i] - statistics.fmean(mine))
    return values, keep


batches = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.7, 1.0, -0.3]), st.sampled_from("abcd")), min_size=1, max_size=24
)


@pytest.mark.parametrize("kind", KINDS)
@given(batch=batches)
def test_equals_the_loop(kind, batch):
    rewards, groups = [r for r, _ in batch], [g for _, g in batch]
    got = group_advantages(rewards, groups, kind)
    values, keep = loop_reference(rewards, groups, kind)
    assert got.keep.tolist() == keep
    torch.testing.assert_close(got.values, torch.tensor(values, dtype=torch.float64), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@given(batch=batches, random=st.randoms(use_true_random=False))
def test_order_does_not_matter(kind, batch, random):
    order = list(range(len(batch)))
    random.shuffle(order)
    straight = group_advantages([r for r, _ in batch], [g for _, g in batch], kind)
    shuffled = group_advantages([batch[i][0] for i in order], [batch[i][1] for i in order], kind)
    torch.testing.assert_close(shuffled.values, straight.values[order], atol=1e-12, rtol=1e-12)
    assert torch.equal(shuffled.keep, straight.keep[order])


def test_hand_numbers():
    rewards, groups = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0], ["a", "a", "a", "b", "b", "b", "b"]
    std_a, std_b = math.sqrt(1 / 3), 0.5
    grpo = group_advantages(rewards, groups, "grpo", eps=0.0).values.tolist()
    third, quarter = 1 / 3, 0.25
    expected = [2 * third / std_a, -third / std_a, -third / std_a]
    expected += [x / std_b for x in (quarter, -3 * quarter, quarter, quarter)]
    assert grpo == pytest.approx(expected)
    assert group_advantages(rewards, groups, "dr_grpo").values.tolist() == pytest.approx(
        [2 / 3, -1 / 3, -1 / 3, 0.25, -0.75, 0.25, 0.25]
    )
    assert group_advantages(rewards, groups, "rloo").values.tolist() == pytest.approx(
        [1.0, -0.5, -0.5, 1 / 3, -1.0, 1 / 3, 1 / 3]
    )
    assert group_advantages([1.0, 0.0, 0.5], ["a", "b", "c"], "reinforce").values.tolist() == [0.5, -0.5, 0.0]


@pytest.mark.parametrize("kind", [*KINDS, "reinforce"])
def test_shift_does_not_matter_and_scale_scales(kind):
    rewards, groups = [0.0, 1.0, 3.0, 2.0, 2.5], ["a", "a", "a", "b", "b"]
    base = group_advantages(rewards, groups, kind, eps=0.0).values
    torch.testing.assert_close(group_advantages([r + 8 for r in rewards], groups, kind, eps=0.0).values, base)
    scaled = group_advantages([4 * r for r in rewards], groups, kind, eps=0.0).values
    torch.testing.assert_close(scaled, base if kind == "grpo" else 4 * base)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(scaled, 4 * base if kind == "grpo" else base)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_rewards_are_exactly_zero_even_where_the_mean_rounds(kind):
    rewards = [0.1] * 7  # their float mean is not 0.1
    assert sum(rewards) / 7 != 0.1
    got = group_advantages(rewards, ["a"] * 7, kind)
    assert got.values.tolist() == [0.0] * 7
    assert not got.keep.any()
    assert group_advantages([*rewards[:6], 0.1 + 1e-9], ["a"] * 7, kind).keep.all()


def test_reinforce_uses_the_rewards_of_all_ranks_and_drops_only_a_uniform_batch():
    ours = group_advantages([1.0, 1.0], ["a", "b"], "reinforce", batch_rewards=[1.0, 1.0, 0.0, 0.0])
    assert ours.values.tolist() == [0.5, 0.5]
    assert ours.keep.all()
    assert not group_advantages([0.1] * 3, ["a", "b", "c"], "reinforce").keep.any()


def test_bad_input():
    assert group_advantages([], []).values.shape == (0,)
    with pytest.raises(ValueError, match="3 rewards but 1"):
        group_advantages([1.0, 2.0, 3.0], ["a"])
    with pytest.raises(ValueError, match="finite"):
        group_advantages([1.0, float("nan")], ["a", "a"])
    with pytest.raises(ConfigError, match="rloo"):
        group_advantages([1.0], ["a"], "best")  # type: ignore[arg-type]
