"""Every shipped config composes, builds on a CPU, and re-parses to itself; order and precedence are as documented."""

from pathlib import Path

import pytest
import yaml

from rpl.cli.main import run
from rpl.modules.grpo import GRPOModule
from rpl.modules.sft import SFTModule
from rpl.training.lightning_cli import RPLCLI

CONFIGS = Path(__file__).parents[2] / "configs"
BASE, TINY = str(CONFIGS / "base.yaml"), str(CONFIGS / "tiny.yaml")
SCHEDULES = sorted(p for p in CONFIGS.glob("*.yaml") if "phases:" in p.read_text())
TASKS = {"rl": GRPOModule, "sft": SFTModule, "eval": GRPOModule}
PATCHES = sorted(p.stem for p in CONFIGS.glob("*.yaml") if p.stem not in {"base", *TASKS} and p not in SCHEDULES)


def compose(task, *more, tmp_path):
    args = ["-c", BASE, "-c", str(CONFIGS / f"{task}.yaml"), "-c", TINY, *more]
    args += ["--trainer.logger.save_dir", str(tmp_path), "--trainer.default_root_dir", str(tmp_path)]
    if task == "sft":
        args += ["--data.repairs", str(tmp_path / "repairs.jsonl")]
    return args


@pytest.mark.parametrize("task", TASKS)
def test_tasks_compose_and_build(task, tmp_path):
    cli = RPLCLI(compose(task, tmp_path=tmp_path), run=False)
    assert type(cli.model) is TASKS[task]


@pytest.mark.parametrize("task", TASKS)
def test_print_config_parses_back_to_itself(task, tmp_path, capsys):
    command = "fit" if task != "eval" else "validate"
    with pytest.raises(SystemExit):
        run([command, *compose(task, tmp_path=tmp_path), "--print_config"])
    first = capsys.readouterr().out
    saved = tmp_path / "saved.yaml"
    saved.write_text(first)
    with pytest.raises(SystemExit):
        run([command, "-c", str(saved), "--print_config"])
    assert yaml.safe_load(capsys.readouterr().out) == yaml.safe_load(first)


@pytest.mark.parametrize("patch", PATCHES)
def test_patches_compose_over_rl(patch, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        run(["fit", *compose("rl", "-c", str(CONFIGS / f"{patch}.yaml"), tmp_path=tmp_path), "--print_config"])
    assert stop.value.code in (0, None)
    assert yaml.safe_load(capsys.readouterr().out)["model"]["class_path"] == "rpl.modules.grpo.GRPOModule"


@pytest.mark.parametrize("more", [(), ("vllm",)], ids=["", "vllm"])
def test_the_published_protocol_composes_with_sharding(more, tmp_path, capsys):
    files = [
        part for name in ("base", "rl", "fsdp", "qwen3_4b", *more) for part in ("-c", str(CONFIGS / f"{name}.yaml"))
    ]
    with pytest.raises(SystemExit) as stop:
        run(["fit", *files, "--print_config"])
    assert stop.value.code in (0, None)
    config = yaml.safe_load(capsys.readouterr().out)
    model, trainer = config["model"]["init_args"], config["trainer"]
    assert trainer["strategy"]["class_path"] == "rpl.training.strategy.FSDP2Strategy"
    assert [c["class_path"].rpartition(".")[2] for c in trainer["callbacks"]][-2:] == [
        "ModelCheckpoint",
        "CollapseGuard",
    ]
    # 512 questions x 5 rollouts an iteration on 8 GPUs, two updates each, 500 iterations, warm-up over 28.5 % of them
    assert (config["data"]["init_args"]["batch_size"] * 8, model["group_size"]) == (512, 5)
    assert trainer["max_steps"] / model["updates_per_iteration"] == 500
    assert model["warmup_steps"] == 0.285 * trainer["max_steps"]
    assert (model["beta"], model["kl_estimator"], model["clip_low"], model["clip_high"]) == (0.001, "k3", 0.2, 0.2)
    assert model["optimizer"]["init_args"]["lr"] == 1e-6
    assert model["rollout"]["max_turns"] * model["rollout"]["max_new_tokens"] <= model["rollout"]["max_context_tokens"]


def test_flags_win_over_files(tmp_path):
    cli = RPLCLI(compose("rl", "--model.group_size", "3", tmp_path=tmp_path), run=False)
    assert cli.model.group_size == 3


def test_unknown_keys_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        run(["fit", *compose("rl", "--model.group_sise", "3", tmp_path=tmp_path)])
    assert stop.value.code == 2
    assert "group_sise" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_yaml_wins_over_what_a_checkpoint_remembers(tmp_path):
    """Lightning would let hyper-parameters in a checkpoint beat YAML and flags, even the class."""
    run(["fit", *compose("rl", "--trainer.max_steps", "1", tmp_path=tmp_path)])
    checkpoint = next(tmp_path.rglob("*.ckpt"))
    args = compose("rl", "--model.group_size", "5", tmp_path=tmp_path)
    cli = run(["validate", *args, "--ckpt_path", str(checkpoint)])
    assert cli.model.group_size == 5


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda p: p.stem)
def test_schedules_parse(path, capsys):
    with pytest.raises(SystemExit) as stop:
        run(["cycle", "-c", str(path), "--print_config"])
    assert stop.value.code in (0, None)
    config = yaml.safe_load(capsys.readouterr().out)
    assert [p["kind"] for p in config["phases"]]
