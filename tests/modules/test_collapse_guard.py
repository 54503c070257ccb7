"""The callback that goes back to the last good state: exactly that state, only when asked to, and not for ever."""

import json

import lightning.pytorch as pl
import pytest
import torch
from module_fakes import QUESTIONS, ListData, ListLoader

from rpl.core.errors import CheckpointError, ConfigError, RPLError
from rpl.training.callbacks import CollapseGuard
from rpl.training.snapshot import put_state, take_state

OFF = {
    "entropy_below": None,
    "approx_kl_above": None,
    "sampler_gap_above": None,
    "grad_norm_above": None,
    "truncated_rate_above": None,
}


def guard(**settings):
    return CollapseGuard(**OFF | {"patience": 1, "keep_every": 1} | settings)


def scripted(module, metric, values):
    """Makes the module log `values` by iteration as the metric, 0.5 elsewhere."""
    step, log = module.training_step, module.log
    logged = set()

    def scripted_log(name, value, **kwargs):
        logged.add(name)
        log(name, values.get(module.iteration - 1, 0.5) if name == metric else value, **kwargs)

    def training_step(batch, batch_idx):
        logged.clear()
        step(batch, batch_idx)
        if metric not in logged:
            scripted_log(metric, 0.5, batch_size=1)

    module.training_step, module.log = training_step, scripted_log
    return module


class Snapshots(pl.Callback):
    """The state before each iteration, and after all other callbacks have had their say about it."""

    def __init__(self):
        self.before, self.after = {}, {}

    def on_train_batch_start(self, trainer, pl_module, *args):
        self.before[pl_module.iteration] = state_of(trainer, pl_module)

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.after[pl_module.iteration - 1] = state_of(trainer, pl_module)


def state_of(trainer, module):
    weights = {name: p.detach().clone() for name, p in module.model.named_parameters()}
    moments = [
        {k: v.clone() for k, v in trainer.optimizers[0].state.get(p, {}).items()} for p in module.model.parameters()
    ]
    return weights, moments


def equal(a, b):
    return all(torch.equal(a[0][n], b[0][n]) for n in a[0]) and all(
        x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x) for x, y in zip(a[1], b[1], strict=True)
    )


def fit(module, make_trainer, steps, callback, ckpt_path=None):
    trainer, recorder = make_trainer(steps, limit_val_batches=0)
    if callback is not None:
        trainer.callbacks.append(callback)
    taker = Snapshots()
    trainer.callbacks.append(taker)
    trainer.fit(module, datamodule=ListData(ListLoader(QUESTIONS, 3)), ckpt_path=ckpt_path)
    return trainer, recorder, taker


@pytest.mark.parametrize(
    ("metric", "bound", "bad"),
    [
        ("train/entropy", {"entropy_below": 0.1}, 0.01),
        ("train/approx_kl", {"approx_kl_above": 1.0}, 3.0),
        ("train/sampler_gap", {"sampler_gap_above": 1.0}, float("nan")),
        ("train/grad_norm", {"grad_norm_above": 1.0}, 1e9),
        ("rollout/truncated_rate", {"truncated_rate_above": 0.9}, 1.0),
        ("rollout/invalid_rate", {"invalid_rate_above": 0.9}, 1.0),
        ("train/reward", {"reward_drop": 0.3}, 0.1),
    ],
)
def test_a_metric_past_its_bound_restores_the_kept_state_exactly(metric, bound, bad, make_grpo, make_trainer, capsys):
    module = scripted(make_grpo(), metric, {2: bad})
    trainer, _, taker = fit(module, make_trainer, 4, guard(**bound))
    # iteration 1 stayed within bounds, so what it began with is good; iteration 2 did not
    assert equal(taker.after[2], taker.before[1])
    assert not equal(taker.after[1], taker.before[1])
    assert trainer.global_step == 4
    assert module.iteration == 4
    err = capsys.readouterr().err
    assert f"{metric} is {bad:.4g}" in err
    assert "back where iteration 1 began (restore 1 of 3)" in err


def test_without_the_callback_nothing_is_restored(make_grpo, make_trainer):
    """The twin of the test above."""
    _, _, taker = fit(scripted(make_grpo(), "train/entropy", {2: 0.01}), make_trainer, 4, None)
    assert not equal(taker.after[2], taker.before[1])
    _, _, taker = fit(scripted(make_grpo(), "train/entropy", {2: 0.2}), make_trainer, 4, guard(entropy_below=0.1))
    assert not equal(taker.after[2], taker.before[1])


def test_data_and_schedule_go_on_after_a_restore(make_grpo, make_trainer):
    settings = {"lr_schedule": "linear"}
    _, plain, _ = fit(scripted(make_grpo(**settings), "train/entropy", {}), make_trainer, 5, None)
    module = scripted(make_grpo(**settings), "train/entropy", {2: 0.01})
    _, guarded, _ = fit(module, make_trainer, 5, guard(entropy_below=0.1))
    assert [row["train/lr"] for row in guarded.rows] == [row["train/lr"] for row in plain.rows]
    assert [row["train/em"] for row in guarded.rows] == [row["train/em"] for row in plain.rows]  # scripted by question
    assert guarded.rows[2]["train/loss"] == plain.rows[2]["train/loss"]
    assert guarded.rows[3]["train/grad_norm"] != plain.rows[3]["train/grad_norm"]


def test_patience_counts_iterations_in_a_row(make_grpo, make_trainer):
    module = scripted(make_grpo(), "train/entropy", {1: 0.0, 3: 0.0, 4: 0.0})
    _, _, taker = fit(module, make_trainer, 6, guard(entropy_below=0.1, patience=2))
    restored = [i for i in range(1, 6) if any(equal(taker.after[i], taker.before[j]) for j in range(i))]
    assert restored == [4]
    assert equal(taker.after[4], taker.before[2])


def test_nothing_is_done_before_a_state_was_good(make_grpo, make_trainer):
    module = scripted(make_grpo(), "rollout/truncated_rate", {0: 1.0, 1: 1.0, 4: 1.0})
    _, _, taker = fit(module, make_trainer, 6, guard(truncated_rate_above=0.9))
    assert not equal(taker.after[1], taker.before[0])
    assert equal(taker.after[4], taker.before[3])


def test_after_the_last_restore_the_run_stops_with_the_reason(make_grpo, make_trainer, tmp_path):
    module = scripted(make_grpo(), "train/entropy", dict.fromkeys(range(1, 9), 0.0))
    with pytest.raises(RPLError, match=r"collapsed again after 2 restores: train/entropy is 0, below 0\.1"):
        fit(module, make_trainer, 9, guard(entropy_below=0.1, max_restores=2))
    assert module.iteration == 4
    lines = [json.loads(line) for line in (tmp_path / "collapse.jsonl").read_text().splitlines()]
    assert [(x["iteration"], x["restored"], x["restores"], x["stopped"]) for x in lines] == [
        (1, 0, 1, False),
        (2, 0, 2, False),
        (3, 0, 2, True),
    ]
    saved = torch.load(tmp_path / "last_good.ckpt", weights_only=True)["state_dict"]
    start = make_grpo()
    start.configure_model()
    assert all(torch.equal(saved[name], value) for name, value in start.state_dict().items())


def test_a_resumed_run_finds_its_kept_state_in_files(make_grpo, make_trainer, tmp_path):
    kept = {"entropy_below": 0.1, "dirpath": str(tmp_path / "kept")}
    trainer, _, first = fit(scripted(make_grpo(), "train/entropy", {}), make_trainer, 3, guard(**kept))
    assert [f.name for f in (tmp_path / "kept").iterdir()] == ["good.rank0of1.pt"]
    trainer.save_checkpoint(tmp_path / "three.ckpt")
    for place, expected in (({}, True), ({"dirpath": None}, False)):
        module = scripted(make_grpo(), "train/entropy", {3: 0.0})
        _, _, taker = fit(module, make_trainer, 4, guard(**kept | place), tmp_path / "three.ckpt")
        assert equal(taker.after[3], first.before[2]) == expected


def test_it_takes_one_line_of_yaml_and_states_what_is_wrong():
    assert CollapseGuard().limits
    with pytest.raises(ConfigError, match="all bounds are off"):
        CollapseGuard(**OFF)
    with pytest.raises(ConfigError, match=r"CollapseGuard\.patience must be at least 1, got 0"):
        CollapseGuard(patience=0)


def test_a_state_of_another_model_is_refused(make_grpo):
    module = make_grpo()
    module.configure_model()
    parameters = dict(module.model.named_parameters())
    optimizer = torch.optim.AdamW(parameters.values())
    state = take_state(parameters, optimizer)
    state["weights"].pop(next(iter(parameters)))
    with pytest.raises(CheckpointError, match=r"the kept state does not fit at model\.embed_tokens\.weight"):
        put_state(state, parameters, optimizer)
