"""Two processes train like one: FSDP2 and DDP on CPU with gloo, judged by the files that the processes write."""

import pytest
from sharded_runs import run, trajectory

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    return run(tmp_path_factory.mktemp("single") / "r")[0]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    return run(tmp_path_factory.mktemp("sharded") / "r", processes=2, strategy="fsdp")


def test_two_sharded_processes_train_like_one(single, sharded):
    """Also where one rank has no work at all (iteration 1) and where nobody has (iteration 3)."""
    assert [row["train/tokens"] > 0 for row in single["rows"]] == [True, True, False]
    for rank in sharded:
        assert trajectory(rank) == pytest.approx(trajectory(single), rel=1e-4)
    # The twin that must fail: half the gradient, as from a forgotten factor of the number of ranks.
    wrong = [{**row, "train/grad_norm": row["train/grad_norm"] / 2} for row in sharded[0]["rows"]]
    assert trajectory({"rows": wrong}) != pytest.approx(trajectory(single), rel=1e-4)


@pytest.mark.parametrize(
    "aggregation", ["token", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sequence", "constant"))]
)
def test_packed_gradients_of_two_processes_equal_padded_ones_of_one(aggregation, tmp_path):
    import torch

    options = {"steps": 2, "aggregation": aggregation}
    run(tmp_path / "plain", packing="plain", **options)
    run(tmp_path / "packed", processes=2, strategy="fsdp", packing="shared", **options)
    plain, *packed = (
        torch.load(tmp_path / name) for name in ("plain.0.gradients", *(f"packed.{r}.gradients" for r in (0, 1)))
    )
    assert max(float(g.abs().max()) for g in plain.values()) > 1e-3
    for rank in packed:
        torch.testing.assert_close(rank, plain, atol=1e-5, rtol=0)
    # The twin that must fail: one hundredth more.
    with pytest.raises(AssertionError):
        torch.testing.assert_close({name: 1.01 * g for name, g in plain.items()}, plain, atol=1e-5, rtol=0)


def test_a_rank_without_questions_does_no_harm(single, tmp_path):
    """All questions of every iteration on one rank and none on the other."""
    for rank in run(tmp_path / "r", processes=2, strategy="fsdp", lopsided=""):
        assert trajectory(rank) == pytest.approx(trajectory(single), rel=1e-4)


def test_validation_over_uneven_shards_equals_that_of_one_process(single, sharded):
    for rank in sharded:
        assert rank["val"] == pytest.approx(single["val"])


def test_the_sharded_policy_is_exported_whole(single, sharded, tmp_path_factory):
    import torch

    from rpl.rollouts.models import load_policy

    one, two = (
        load_policy(tmp_path_factory.getbasetemp() / f"{name}0" / "r.policy")[0].state_dict()
        for name in ("single", "sharded")
    )
    torch.testing.assert_close(two, one, atol=1e-4, rtol=1e-3)
    start = load_policy("tiny")[0].state_dict()
    with pytest.raises(AssertionError):
        torch.testing.assert_close(two, start, atol=1e-4, rtol=1e-3)


def test_a_sharded_run_resumes_exactly(sharded, tmp_path):
    run(tmp_path / "first", processes=2, strategy="fsdp", steps=2)
    rest = run(tmp_path / "second", processes=2, strategy="fsdp", ckpt=str(tmp_path / "first.ckpt"))
    assert [trajectory({"rows": r["rows"]}) for r in rest] == [trajectory({"rows": r["rows"][1:]}) for r in sharded]


def test_ranks_may_sample_different_numbers_of_tokens(tmp_path):
    """The policy itself samples, in bfloat16: ranks need different numbers of forward passes and must not hang."""
    ranks = run(tmp_path / "r", processes=2, strategy="fsdp", precision="bf16-mixed", real="")
    for rank in ranks:
        assert trajectory(rank) == trajectory(ranks[0])
        assert rank["rows"][0]["train/tokens"] > 0
        assert 0 < rank["rows"][0]["train/sampler_gap"] < 0.1


def test_when_one_rank_fails_all_ranks_raise(tmp_path):
    healthy, broken = run(tmp_path / "r", processes=2, strategy="fsdp", fault=1)
    assert "no index" in broken["error"]
    assert healthy["error"].startswith("RetrieverError")
    assert "another rank" in healthy["error"]


def test_sft_in_two_processes_equals_one(tmp_path):
    one = run(tmp_path / "one", task="sft", steps=3)[0]
    for rank in run(tmp_path / "two", processes=2, strategy="ddp", task="sft", steps=3):
        assert trajectory(rank) == pytest.approx(trajectory(one), rel=1e-4)
    assert trajectory(one)[:3] != pytest.approx(trajectory(one)[3:6], rel=1e-4)
