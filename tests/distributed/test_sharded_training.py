"""Two processes train like one: FSDP2 and DDP on CPU with gloo, judged by the files that the processes write."""

import json

import pytest
import torch
from sharded_runs import Runs, trajectory

from rpl.policy.loading import load_policy

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


def test_two_sharded_processes_train_like_one(one, two):
    """Also where one rank has no work at all (iteration 1) and where nobody has (iteration 3)."""
    (single,) = one["grpo"]
    assert [row["train/tokens"] > 0 for row in single["rows"]] == [True, True, False]
    for rank in two["grpo"]:
        assert trajectory(rank) == pytest.approx(trajectory(single), rel=1e-4)
    # The twin that must fail: half the gradient, as from a forgotten factor of the number of ranks.
    wrong = [{**row, "train/grad_norm": row["train/grad_norm"] / 2} for row in two["grpo"][0]["rows"]]
    assert trajectory({"rows": wrong}) != pytest.approx(trajectory(single), rel=1e-4)


def recorded(runs, name):
    lines = [json.loads(line) for line in (runs.folder / name / "rollouts.jsonl").read_text().splitlines()]
    return sorted((x["iteration"], x["rollout"]["group_id"], x["rollout"]["sample_index"], x["reward"]) for x in lines)


def test_the_rollouts_of_all_ranks_are_recorded_once(one, two):
    whole = recorded(one, "grpo")
    assert len(whole) == 3 * 4 * 4  # iterations, questions, samples
    assert recorded(two, "grpo") == recorded(two, "lopsided") == whole


def gradients(runs, name):
    return [torch.load(runs.folder / name / f"rank{rank}.gradients") for rank in range(runs.processes)]


def assert_equal_gradients(padded, packed):
    (plain,) = padded
    assert max(float(g.abs().max()) for g in plain.values()) > 1e-3
    for rank in packed:
        torch.testing.assert_close(rank, plain, atol=1e-5, rtol=0)
    # The twin that must fail: one hundredth more.
    with pytest.raises(AssertionError):
        torch.testing.assert_close({name: 1.01 * g for name, g in plain.items()}, plain, atol=1e-5, rtol=0)


def test_packed_gradients_of_two_processes_equal_padded_ones_of_one(one, two):
    assert_equal_gradients(gradients(one, "padded"), gradients(two, "short"))


@pytest.mark.slow
def test_packed_gradients_are_equal_with_the_other_aggregations(tmp_path, forks):
    kinds = ("sequence", "constant")
    one = Runs(tmp_path / "one", {k: {"steps": 2, "aggregation": k, "packing": "plain"} for k in kinds}, forks)
    two = Runs(tmp_path / "two", {k: {"steps": 2, "aggregation": k} for k in kinds}, forks, 2, "fsdp")
    for kind in kinds:
        assert_equal_gradients(gradients(one, kind), gradients(two, kind))


def test_a_rank_without_questions_does_no_harm(one, two):
    """All questions of every iteration on one rank and none on the other."""
    for rank in two["lopsided"]:
        assert trajectory(rank) == pytest.approx(trajectory(one["grpo"][0]), rel=1e-4)


def test_validation_over_uneven_shards_equals_that_of_one_process(one, two):
    for rank in two["grpo"]:
        assert rank["val"] == pytest.approx(one["grpo"][0]["val"])


def test_the_sharded_policy_is_exported_whole(one, two):
    single, sharded = (load_policy(runs.folder / "grpo" / "policy")[0].state_dict() for runs in (one, two))
    torch.testing.assert_close(sharded, single, atol=1e-4, rtol=1e-3)
    start = load_policy("tiny")[0].state_dict()
    with pytest.raises(AssertionError):
        torch.testing.assert_close(sharded, start, atol=1e-4, rtol=1e-3)


def test_a_sharded_run_resumes_exactly(two, resumed):
    rest = [trajectory({"rows": rank["rows"][1:]}) for rank in two["grpo"]]
    assert [trajectory(rank) for rank in resumed["grpo"]] == rest


def test_ranks_may_sample_different_numbers_of_tokens(two):
    """The policy itself samples, in bfloat16: ranks need different numbers of forward passes and must not hang."""
    for rank in two["sampled"]:
        assert trajectory(rank) == trajectory(two["sampled"][0])
        assert rank["rows"][0]["train/tokens"] > 0
        assert 0 < rank["rows"][0]["train/sampler_gap"] < 0.1


def test_when_one_rank_fails_all_ranks_raise(two):
    healthy, broken = two["fault"]
    assert "no index" in broken["error"]
    assert healthy["error"].startswith("RetrieverError")
    assert "another rank" in healthy["error"]


def test_sft_in_two_processes_equals_one(one, two):
    (single,) = one["sft"]
    for rank in two["sft"]:
        assert trajectory(rank) == pytest.approx(trajectory(single), rel=1e-4)
    assert trajectory(single)[:3] != pytest.approx(trajectory(single)[3:6], rel=1e-4)
