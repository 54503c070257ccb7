"""The parts of the schedule that need no model: names, folders, locks."""

import json
from pathlib import Path

import pytest

from rpl.cli.commands.parsing import make_parser
from rpl.core.errors import CheckpointError, ConfigError
from rpl.schedule import cycle
from rpl.schedule.folder import RunFolder
from rpl.schedule.phases import EvalConfig, PhaseConfig, name_phases
from rpl.schedule.run import _point

CONFIGS = Path(__file__).parents[2] / "configs"
CONFIG = {"seed": 0, "phases": [{"kind": "rl"}, {"kind": "eval", "k": [1, 3]}]}


def test_phases_without_a_name_are_numbered():
    phases = [PhaseConfig(kind) for kind in ("rl", "harvest", "sft", "rl", "harvest")]
    assert name_phases(phases) == ["rl", "harvest", "sft", "rl-2", "harvest-2"]


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([], "at least one phase"),
        ([PhaseConfig("rl", name="a"), PhaseConfig("sft", name="a")], "'a' is used twice"),
        ([PhaseConfig("rl", name="a/b")], "letters, digits"),
    ],
)
def test_bad_names_are_refused(phases, message):
    with pytest.raises(ConfigError, match=message):
        name_phases(phases)


def test_class_paths_in_fragments_are_passed_on_as_they_stand(tmp_path):
    phase = {"kind": "sft", "model": {"optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.1}}}}
    args = ["-c", str(CONFIGS / "tiny_cycle.yaml"), "--phases", json.dumps([phase])]
    parser = make_parser("cycle", cycle)
    [parsed] = parser.instantiate(parser.parse_args(args)).phases
    assert parsed.model == phase["model"]


def test_an_evaluation_needs_a_depth():
    with pytest.raises(ConfigError, match="fixed_k"):
        EvalConfig(fixed_k=())


def test_a_folder_is_reopened_by_the_same_config_only(tmp_path):
    RunFolder(tmp_path / "run", CONFIG).close()
    RunFolder(tmp_path / "run", CONFIG).close()
    other = {**CONFIG, "phases": [{"kind": "rl"}, {"kind": "eval", "k": [1, 5]}]}
    with pytest.raises(CheckpointError, match=r"phases\.1\.k\.1: there 3, now 5"):
        RunFolder(tmp_path / "run", other)


def test_a_folder_serves_one_process_at_a_time(tmp_path):
    first = RunFolder(tmp_path / "run", CONFIG)
    with pytest.raises(CheckpointError, match="another process"):
        RunFolder(tmp_path / "run", CONFIG)
    first.close()
    RunFolder(tmp_path / "run", CONFIG).close()


def test_a_phase_is_done_when_its_marker_is_there(tmp_path):
    run = RunFolder(tmp_path / "run", CONFIG)
    phase = run.phase(1, "sft")
    (phase / "checkpoints").mkdir()
    assert run.done(phase) is None
    run.finish(phase, {"policy": "p"})
    assert run.done(phase) == {"policy": "p"}
    assert not (phase / "checkpoints").exists()
    run.close()


def test_the_environment_is_recorded(tmp_path):
    RunFolder(tmp_path / "run", CONFIG).close()
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["packages"]["torch"]
    assert environment["cpus"] >= 1


def test_the_model_link_moves_in_one_step(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
        _point(tmp_path / "model", tmp_path / name)
        assert (tmp_path / "model" / "config.json").read_text() == name
