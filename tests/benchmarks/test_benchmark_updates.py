"""The update benchmark's workload, its check that both sides do the same work, and our side of it on a tiny model."""

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks import updates
from benchmarks.sides import Measured, SideError
from benchmarks.updates_rpl import Prepared, records
from benchmarks.workload import Shape, make
from rpl.modules.batches.micro_batches import collate, from_rollout


@pytest.fixture(scope="module")
def tokenizer():
    return SimpleNamespace(encode=lambda text, add_special_tokens: list(text.encode()))


def test_a_workload_has_the_wanted_shape(tokenizer):
    shape = Shape(questions=5, group_size=4, prompt=30, transcript=20, written=8, equal_groups=2)
    groups = make(shape, tokenizer)["groups"]
    assert [len(g["prompt"]) for g in groups] == [30] * 5
    for number, group in enumerate(groups):
        rewards = {row["reward"] for row in group["rollouts"]}
        assert rewards == ({0.0} if number < 2 else {0.0, 1.0})
        for row in group["rollouts"]:
            assert len(row["program"]) + len(row["answer"]) == 8
            assert len(row["observation"]) == 12
    assert make(shape, tokenizer)["groups"] == groups
    assert make(shape, tokenizer, seed=1)["groups"] != groups


def test_lengths_vary_when_asked(tokenizer):
    groups = make(Shape(questions=2, transcript=100, written=40, spread=0.5), tokenizer)["groups"]
    lengths = [len(r["program"]) + len(r["observation"]) + len(r["answer"]) for g in groups for r in g["rollouts"]]
    assert min(lengths) >= 49
    assert max(lengths) <= 151
    assert max(lengths) > 1.2 * min(lengths)


@pytest.mark.parametrize(
    "wrong", [{"written": 250}, {"group_size": 1}, {"equal_groups": 9}, {"spread": 1.0}, {"written": 1}]
)
def test_shapes_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"\d"):
        Shape(**wrong)


def test_sides_whose_gradients_differ_did_not_do_the_same_work():
    def first(norm):
        return Measured(turns=[{"seconds": 1.0, "grad_norm": norm}])

    updates.check_same_work({"trl": first(1.001), "rpl": first(1.0)}, "fp32", Shape())
    with pytest.raises(SideError, match="trl and rpl did not do the same work"):
        updates.check_same_work({"trl": first(1.01), "rpl": first(1.0)}, "fp32", Shape())


def test_a_group_without_a_difference_is_in_the_mean_of_one_side_only():
    def first(norm):
        return Measured(turns=[{"seconds": 1.0, "grad_norm": norm}])

    shape = Shape(questions=5, equal_groups=2)
    updates.check_same_work({"trl": first(0.6), "plain": first(1.0), "rpl": first(1.0)}, "fp32", shape)
    for trl, plain in ((1.0, 1.0), (0.6, 0.6)):
        with pytest.raises(SideError, match="did not do the same work"):
            updates.check_same_work({"trl": first(trl), "plain": first(plain), "rpl": first(1.0)}, "fp32", shape)


def test_logits_of_all_positions_score_the_trained_tokens_alike(tokenizer):
    shape = Shape(questions=1, group_size=3, prompt=9, transcript=12, written=5, spread=0.4)
    _, rollouts = records(make(shape, tokenizer))
    sequences = [from_rollout(rollout, 1.0) for rollout in rollouts]
    batch = collate(sequences, [0, 1, 2])
    first = Prepared(rollouts, True, policy="tiny")
    first.configure_model()
    shipped = Prepared(rollouts, False, policy="tiny")
    shipped.model = first.model
    for kind in ("logprobs", "entropies"):
        index = ("logprobs", "entropies").index(kind)
        plain = first.token_logprobs(batch, 0.7, "detached")[index]
        assert plain.shape == (sum(s.num_trained for s in sequences),)
        torch.testing.assert_close(plain, shipped.token_logprobs(batch, 0.7, "detached")[index], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(plain, shipped.token_logprobs(batch, 0.8, "detached")[index], rtol=1e-4, atol=1e-5)


def test_our_side_in_the_quick_form(tmp_path, capsys):
    out = tmp_path / "results.jsonl"
    arguments = ["--quick", "--no-trl", "--precision", "fp32", "--threads", "1", "--repeats", "1"]
    assert updates.main([*arguments, "--equal-groups", "1", "--out", str(out)]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [json.loads(text) for text in out.read_text().splitlines()] == [line]
    own = line["sides"]["rpl"]
    assert own["first_grad_norm"] > 0
    assert own["trajectories_per_s"] == pytest.approx(8 / own["seconds"][0], rel=0.1)
    assert own["peak_mib"] > 100
    assert line["ratios"] == {}
    assert line["settings"]["shape"]["equal_groups"] == 1


def test_the_summary_compares_medians_and_peaks():
    def side(seconds, peak):
        return Measured(turns=[{"seconds": s, "grad_norm": 1.0} for s in seconds], peak_mib=peak)

    args = updates.parse(["--no-trl"])
    line = updates.summarise(args, {"trl": side((80.0, 64.0, 64.0), 1000.0), "rpl": side((32.0, 16.0, 40.0), 500.0)})
    assert line["ratios"] == {"trl": {"speed": 2.0, "peak_memory": 0.5}}
    assert line["sides"]["trl"]["trajectories_per_s"] == 1.0
    assert "2.00x" in "\n".join(updates.describe(line))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-trl", "--trl-rows", "7"], "does not divide"),
        (["--trl-python", "/no/such"], "no interpreter"),
        (["--no-trl", "--policy-tokens", "300"], "transcript tokens"),
        (["--repeats", "0"], "at least 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as info:
        updates.parse(arguments)
    assert info.value.code == 2
    assert message in capsys.readouterr().err
