"""A run with a budget, from end to end, with the tiny model."""

import json
from pathlib import Path

import pytest

from rpl.cli.main import run
from rpl.core.errors import ConfigError
from rpl.estimate import schedule as costs
from rpl.estimate.shapes import NoEstimateError
from rpl.schedule import clock, plan

TINY = ["cycle", "-c", str(Path(__file__).parents[2] / "configs" / "tiny_cycle.yaml")]


@pytest.fixture
def same_speed(monkeypatch):
    """A machine whose measured speed is always the same; a phase costs what starting it costs."""
    monkeypatch.setattr(plan, "measured_rate", lambda *_: 1e12)


def test_a_budget_that_does_not_suffice_leaves_nothing_behind(same_speed, tmp_path):
    with pytest.raises(ConfigError, match=r"0\.1 minutes do not suffice .* rpl cycle -c configs/tiny"):
        run([*TINY, "--run_dir", str(tmp_path / "run"), "--budget_minutes", "0.1"])
    assert {p.name for p in (tmp_path / "run").iterdir()} == {".lock"}
    with pytest.raises(ConfigError, match="budget_minutes must be above 0"):
        run([*TINY, "--run_dir", str(tmp_path / "run"), "--budget_minutes", "0"])


def test_a_budgeted_run_is_cut_and_says_so(same_speed, tmp_path, capsys, monkeypatch):
    """The clock allows three phases of five, and each is late at once: a chunk, a step, the fewest questions."""
    monkeypatch.setattr(clock.Limit, "left_s", property(lambda self: -1.0))
    folder = tmp_path / "run"
    budget = (3.5 * costs.START_S + 12 * costs.SEARCH_S) / 60
    command = [*TINY, "--run_dir", str(folder), "--budget_minutes", str(budget)]
    results = run(command)
    said = capsys.readouterr().err
    assert "cut to fit the budget: rl 0 of 2" in said
    assert "rl-2 is left out to keep the budget" in said
    assert "4 of 12 questions were tried, to keep the budget" in said
    made = json.loads((folder / "plan.json").read_text())
    assert sum(made["seconds"]) <= 60 * budget
    assert [
        name for name in ("00-rl", "03-rl-2") if "left_out" in json.loads((folder / name / "done.json").read_text())
    ]
    assert {row["phase"] for row in results["rows"]} == {"start", "sft"}
    assert {row["metrics"]["em"]["n"] for row in results["rows"]} == {10}
    assert all("10 of 10 planned questions" in row["settings"]["evaluated"] for row in results["rows"])
    spent = json.loads((folder / "clock.json").read_text())["spent_s"]
    run(command)  # done already
    assert json.loads((folder / "clock.json").read_text())["spent_s"] >= spent


def test_a_run_without_an_estimate_goes_on(tmp_path, monkeypatch, capsys):
    def nothing(policy):
        raise NoEstimateError("no estimate for this architecture (Odd)")

    monkeypatch.setattr(plan, "size_of", nothing)
    monkeypatch.setattr("rpl.schedule.run._run_all", lambda *_: None)
    run([*TINY, "--run_dir", str(tmp_path / "run"), "--budget_minutes", "5"])
    said = capsys.readouterr().err
    assert "no estimate for this architecture (Odd): the schedule runs as it is written; the clock alone" in said
