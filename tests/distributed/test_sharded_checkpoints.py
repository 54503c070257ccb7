"""Sharded checkpoints become ordinary model folders; adapters and the way out of a collapse work on shards."""

import pytest
import torch
from sharded_runs import run, trajectory
from torch.distributed.checkpoint import FileSystemReader

from rpl.cli import main
from rpl.rollouts.models import load_policy

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]
SHARDED = {"processes": 2, "strategy": "fsdp"}


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    out = tmp_path_factory.mktemp("one") / "r"
    return out, run(out, steps=4, lora="")[0]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    out = tmp_path_factory.mktemp("two") / "r"
    return out, run(out, steps=4, lora="", **SHARDED)


def weights(folder):
    return load_policy(folder)[0].state_dict()


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], value) for name, value in b.items())


def test_sharded_adapters_train_like_those_of_one_process(single, sharded):
    assert trajectory(single[1])
    for rank in sharded[1]:
        assert trajectory(rank) == pytest.approx(trajectory(single[1]), rel=1e-4)
    one, two = (weights(out.with_suffix(".policy")) for out, _ in (single, sharded))
    torch.testing.assert_close(two, one, atol=1e-4, rtol=1e-3)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(weights("tiny"), one, atol=1e-4, rtol=1e-3)


def test_a_sharded_checkpoint_of_adapters_becomes_a_model_folder_and_resumes_exactly(sharded, tmp_path):
    out, ranks = sharded
    main(["export", str(out.with_suffix(".ckpt")), "--out", str(tmp_path / "exported")])
    assert same(weights(tmp_path / "exported"), weights(out.with_suffix(".policy")))
    kept = FileSystemReader(out.with_suffix(".ckpt")).read_metadata().state_dict_metadata
    assert all("lora_" in name for name in kept if name.startswith("state_dict."))
    assert any(name.startswith("state_dict.") for name in kept)
    run(tmp_path / "first", steps=2, lora="", **SHARDED)
    rest = run(tmp_path / "second", steps=4, lora="", ckpt=str(tmp_path / "first.ckpt"), **SHARDED)
    assert [trajectory({"rows": r["rows"]}) for r in rest] == [trajectory({"rows": r["rows"][1:]}) for r in ranks]


@pytest.mark.slow
def test_a_sharded_checkpoint_of_all_weights_becomes_a_model_folder(tmp_path):
    ranks = run(tmp_path / "r", steps=2, guard="", **SHARDED)
    assert "error" not in ranks[0]
    main(["export", str(tmp_path / "r.ckpt"), "--out", str(tmp_path / "exported")])
    assert same(weights(tmp_path / "exported"), weights(tmp_path / "r.policy"))
    assert not same(weights(tmp_path / "exported"), weights("tiny"))


def test_all_ranks_go_back_when_one_sees_a_collapse(tmp_path):
    ranks = run(tmp_path / "r", steps=6, guard="", **SHARDED)
    for rank in ranks:
        assert rank["after"][1] == rank["before"][0]  # iteration 0 was the last one within bounds
        assert rank["after"][0] != rank["before"][0]
    assert ranks[0]["before"][0] != ranks[1]["before"][0]  # each has a part of its own
    assert (tmp_path / "collapse.jsonl").read_text().count("\n") == 1
