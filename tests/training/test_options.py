"""Options that RPL's loop does not honour are refused by name, in one line, before anything is loaded."""

from pathlib import Path

import pytest

from rpl.cli.main import main
from rpl.core.errors import ConfigError
from rpl.training.options import check_options

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = [part for name in ("base", "rl", "tiny") for part in ("-c", str(CONFIGS / f"{name}.yaml"))]
EARLY = '{"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "val_em"}}'
SWA = '{"class_path": "lightning.pytorch.callbacks.StochasticWeightAveraging", "init_args": {"swa_lrs": 0.1}}'
GUARD = '{"class_path": "rpl.training.callbacks.CollapseGuard", "init_args": {"patience": 0}}'
BY_THE_CLOCK = '{"class_path": "ModelCheckpoint", "init_args": {"train_time_interval": "0:10:00"}}'
TWO_RHYTHMS = '{"class_path": "ModelCheckpoint", "init_args": {"every_n_train_steps": 1, "every_n_epochs": 1}}'


def said(args, capsys):
    """The one line of a command that is refused."""
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code in (1, 2)
    text = capsys.readouterr().err
    lines = [line for line in text.splitlines() if line.startswith("rpl: ") and "rror: " in line]
    assert len(lines) == 1
    assert "usage:" not in text
    return lines[-1]


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("trainer.overfit_batches", "1", "data.num_train"),
        ("trainer.limit_train_batches", "1", "data.num_train"),
        ("trainer.limit_train_batches", "0.5", "data.num_train"),
        ("trainer.accumulate_grad_batches", "2", "data.batch_size"),
        ("trainer.gradient_clip_val", "1.0", "model.gradient_clip"),
        ("trainer.use_distributed_sampler", "true", "share"),
        ("trainer.reload_dataloaders_every_n_epochs", "1", "shuffle"),
        ("trainer.precision", "16-mixed", "bf16-mixed"),
        ("trainer.precision", "bf16-true", "bf16-mixed"),
        ("trainer.strategy", "fsdp", "FSDP2Strategy"),
        ("trainer.strategy", "ddp_spawn", "ddp"),
        ("trainer.accelerator", "gpu", "trainer"),
        ("trainer.callbacks+", EARLY, "val/em"),
        ("trainer.callbacks+", SWA, "StochasticWeightAveraging"),
        ("ckpt_path", "best", "path of a checkpoint"),
        ("ckpt_path", "nowhere.ckpt", "nowhere.ckpt: there is no such checkpoint"),
        ("trainer.max_step", "2", "did you mean --trainer.max_steps"),
        ("model.init_args.rollout.max_turn", "2", "max_turns"),
        ("model.group_size", "many", "many"),
        ("trainer.deterministic", "yesplease", "must be bool or 'warn' or null, got 'yesplease'"),
        ("trainer.callbacks+", GUARD, "patience must be at least 1, got 0"),
        ("trainer.callbacks+", TWO_RHYTHMS, "mutually exclusive"),
        ("trainer.callbacks+", BY_THE_CLOCK, "TimedCheckpoint"),
        ("model.init_args.group", "2", "did you mean group_size"),
        ("model.optimizer.init_args.lr", "-1", "model.optimizer: Invalid learning rate: -1"),
    ],
)
def test_an_option_that_is_not_honoured_is_refused_by_name(option, value, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = said(["fit", *FILES, f"--{option}", value], capsys)
    assert named in line
    assert option.endswith("+") or option.rpartition(".")[2] in line or value in line
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("accelerator", "tpu", "must be one of auto, cpu, gpu, cuda, mps"),
        ("devices", "1000", "must be 'auto' or from 1 to"),
        ("devices", -1, "must be 'auto' or from 1 to"),
        ("devices", [0, 1], "must be 'auto' or from 1 to"),
        ("fast_dev_run", 1, "use trainer.max_steps"),
        ("check_val_every_n_epoch", 0, "limit_val_batches 0 turns validation off"),
        ("max_steps", 0, "nothing would be trained"),
        ("max_epochs", 0, "nothing would be trained"),
        ("plugins", {"class_path": "lightning.pytorch.plugins.io.AsyncCheckpointIO"}, "AsyncCheckpointIO"),
        ("plugins", ["HalfPrecision"], "trainer.precision"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_what_is_allowed(option, value, named, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    check_options({"trainer": {"devices": "2", "check_val_every_n_epoch": None, "max_steps": -1}}, "fit")
    with pytest.raises(ConfigError, match=f"^trainer.{option} ") as error:
        check_options({"trainer": {option: value}}, "fit")
    assert named in str(error.value)


@pytest.mark.parametrize(("first", "second"), [("rl", "sft"), ("sft", "rl"), ("rl", "eval")])
def test_two_task_files_are_refused(first, second, capsys):
    files = [part for name in ("base", first, second) for part in ("-c", str(CONFIGS / f"{name}.yaml"))]
    assert "exactly one task" in said(["fit", *files], capsys)


def test_a_missing_task_file_is_named(capsys):
    files = [part for name in ("base", "tiny") for part in ("-c", str(CONFIGS / f"{name}.yaml"))]
    assert "says the class of model and data; give one such as -c configs/rl.yaml" in said(["fit", *files], capsys)


def test_a_key_that_no_configuration_has_is_refused_even_if_it_is_empty(tmp_path, capsys):
    patch = tmp_path / "patch.yaml"
    patch.write_text("modle: {}\n")
    assert said(["fit", *FILES, "-c", str(patch)], capsys).endswith(
        f"{patch}: there is no key 'modle'; did you mean 'model'?"
    )


def test_a_patch_that_repeats_the_class_is_no_second_task(tmp_path, capsys):
    patch = tmp_path / "patch.yaml"
    patch.write_text("model:\n  class_path: GRPOModule\n  init_args: {group_size: 3}\n")
    with pytest.raises(SystemExit) as stop:
        main(["fit", *FILES, "-c", str(patch), "--print_config"])
    assert not stop.value.code
    assert "group_size: 3" in capsys.readouterr().out


def test_without_base_yaml_a_run_leaves_policy_and_metrics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["fit", *FILES[2:], "--trainer.max_steps", "1", "--trainer.enable_progress_bar", "false"])
    assert list(tmp_path.rglob("policy/model.safetensors"))
    (metrics,) = tmp_path.rglob("metrics.csv")
    assert "train/reward" in metrics.read_text()


def test_predict_writes_the_rollouts_and_says_where(tmp_path, capsys):
    files = [part for name in ("base", "eval", "tiny") for part in ("-c", str(CONFIGS / f"{name}.yaml"))]
    main(["predict", *files, "--trainer.logger.save_dir", str(tmp_path), "--trainer.enable_progress_bar", "false"])
    (path,) = tmp_path.rglob("predictions.jsonl")
    assert len(path.read_text().splitlines()) == 4
    assert f"wrote 4 rollouts to {path}" in capsys.readouterr().err
