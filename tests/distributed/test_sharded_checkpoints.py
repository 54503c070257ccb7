"""Sharded checkpoints become ordinary model folders; adapters and the way out of a collapse work on shards."""

import pytest
import torch
from sharded_runs import trajectory
from torch.distributed.checkpoint import FileSystemReader

from rpl.cli.main import main
from rpl.policy.loading import load_policy

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


def weights(folder):
    return load_policy(folder)[0].state_dict()


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], value) for name, value in b.items())


def test_sharded_adapters_train_like_those_of_one_process(one, two):
    (single,) = one["lora"]
    assert trajectory(single)
    for rank in two["lora"]:
        assert trajectory(rank) == pytest.approx(trajectory(single), rel=1e-4)
    alone, together = (weights(runs.folder / "lora" / "policy") for runs in (one, two))
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-3)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(weights("tiny"), alone, atol=1e-4, rtol=1e-3)


def test_a_sharded_checkpoint_of_adapters_becomes_a_model_folder(two, tmp_path):
    checkpoint = two.folder / "lora" / "checkpoint.ckpt"
    main(["export", str(checkpoint), "--out", str(tmp_path / "exported")])
    assert same(weights(tmp_path / "exported"), weights(two.folder / "lora" / "policy"))
    kept = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    assert all("lora_" in name for name in kept if name.startswith("state_dict."))
    assert any(name.startswith("state_dict.") for name in kept)


def test_a_sharded_checkpoint_of_adapters_resumes_exactly(two, resumed):
    rest = [trajectory({"rows": rank["rows"][1:]}) for rank in two["lora"]]
    assert [trajectory(rank) for rank in resumed["lora"]] == rest


def test_a_sharded_checkpoint_of_all_weights_becomes_a_model_folder(two, tmp_path):
    main(["export", str(two.folder / "short" / "checkpoint.ckpt"), "--out", str(tmp_path / "exported")])
    assert same(weights(tmp_path / "exported"), weights(two.folder / "short" / "policy"))
    assert not same(weights(tmp_path / "exported"), weights("tiny"))


def test_all_ranks_go_back_when_one_sees_a_collapse(two):
    for rank in two["guard"]:
        assert rank["after"][1] == rank["before"][0]  # iteration 0 was the last one within bounds
        assert rank["after"][0] != rank["before"][0]
    assert two["guard"][0]["before"][0] != two["guard"][1]["before"][0]  # each has a part of its own
    assert (two.folder / "guard" / "collapse.jsonl").read_text().count("\n") == 1
