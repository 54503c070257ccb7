"""The parts of the schedule that need no model: names, folders, locks, the estimate."""

import json
from pathlib import Path

import pytest

from rpl.cli.commands.parsing import make_parser
from rpl.core.errors import CheckpointError, ConfigError
from rpl.estimate.training import ModelShape, Settings, memory, peaks
from rpl.schedule import cycle
from rpl.schedule.config import EvalConfig, PhaseConfig, name_phases
from rpl.schedule.folder import RunFolder
from rpl.schedule.plan import FRAGMENTED, SEARCH_S, START_S, Costs
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


SHAPE = ModelShape(
    parameters=10**8, vocab=49152, hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3, head_dim=64
)
RL = PhaseConfig(kind="rl")
EVAL = PhaseConfig(kind="eval", eval=EvalConfig(num_questions=100, fixed_k=[1, 3]))


def phase_seconds(phase, flops=1e11, trained=2, **trainer):
    return Costs(SHAPE, Settings(), flops).phase(phase, {"batch_size": 8}, {"group_size": 4}, trainer, trained)


def test_phase_times_scale_with_the_machine_and_the_work():
    ten = phase_seconds(RL, max_steps=10) - START_S
    assert phase_seconds(RL, max_steps=20) - START_S == pytest.approx(2 * ten)
    assert phase_seconds(RL, flops=2e11, max_steps=10) - START_S == pytest.approx(ten / 2)
    one, two = (phase_seconds(EVAL, trained=count) for count in (1, 2))
    assert two > one > START_S
    harvest = PhaseConfig(kind="harvest", num_questions=100)
    assert phase_seconds(harvest) > START_S + 100 * SEARCH_S


def test_memory_is_that_of_the_hungriest_phase():
    costs = Costs(SHAPE, Settings(), 1e11)
    works = [costs.work(phase, {"batch_size": 8}, {"group_size": 4}) for phase in (RL, PhaseConfig(kind="sft"))]
    alone = [costs.peak([work]) for work in works]
    assert costs.peak(works) == max(alone)
    assert alone[0] == pytest.approx(FRAGMENTED * max(peaks(memory(SHAPE, Settings(), works[0])).values()))
    assert costs.peak([]) == pytest.approx(FRAGMENTED * 4e8)
