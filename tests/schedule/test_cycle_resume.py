"""A schedule that is killed in every phase and started again ends with the numbers of one that was not."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patience

from rpl.cli.main import main, run
from rpl.core.errors import CheckpointError, ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
TINY = str(CONFIGS / "tiny_cycle.yaml")


def arguments(run_dir):
    return ["cycle", "-c", TINY, "--run_dir", str(run_dir)]


def in_own_session(run_dir, log):
    """What a started process does: the command, as the leader of a session that its workers belong to."""
    os.setsid()
    with open(log, "a") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    main(arguments(run_dir))


def begun(pattern):
    return lambda folder: any(p.stat().st_size for p in folder.glob(pattern))


PHASES = {
    "00-rl": begun("checkpoints/*.ckpt"),
    "01-harvest": begun("repairs.jsonl"),
    "02-sft": begun("checkpoints/*.ckpt"),
    "03-rl-2": begun("checkpoints/*.ckpt"),
    "04-eval": begun("*.jsonl"),
}


def kill_in(run_dir, phase, log, forks):
    """Starts the schedule, waits until the phase is half-way, and kills it with signal 9."""
    process = forks.Process(target=in_own_session, args=(run_dir, log))
    process.start()
    folder, deadline = run_dir / phase, time.monotonic() + patience(120)
    try:
        while not PHASES[phase](folder):
            assert process.is_alive(), f"ended before it could be killed in {phase}: {log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"{phase} never got half-way"
            time.sleep(0.002)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may have failed before it led a session
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
    return not (folder / "done.json").exists()


def without_clock(value):
    if isinstance(value, dict):
        return {k: without_clock(v) for k, v in value.items() if k not in ("seconds", "at", "cached")}
    if isinstance(value, list):
        return [without_clock(v) for v in value]
    return value


def outcome(run_dir):
    lines = {
        name: [without_clock(json.loads(line)) for line in (run_dir / name).read_text().splitlines()]
        for name in ("rollouts.jsonl", "metrics.jsonl", "repairs.jsonl")
    }
    lines["metrics.jsonl"] = [x for x in lines["metrics.jsonl"] if not x["name"].startswith("time/")]
    results = without_clock(json.loads((run_dir / "results.json").read_text()))
    return lines, results, (run_dir / "model" / "model.safetensors").read_bytes()


def test_a_run_that_is_killed_in_every_phase_ends_with_the_same_numbers(finished_cycle, tmp_path, forks):
    run_dir, log = tmp_path / "run", tmp_path / "log"
    interrupted = [kill_in(run_dir, phase, log, forks) for phase in PHASES]
    last = subprocess.run(
        [sys.executable, "-m", "rpl", *arguments(run_dir)], timeout=patience(240), capture_output=True, text=True
    )
    assert last.returncode == 0, last.stderr[-3000:]
    assert sum(interrupted) >= 4, "the kills came too late to interrupt the phases"
    killed, uninterrupted = outcome(run_dir), outcome(finished_cycle)
    for mine, theirs in zip(killed, uninterrupted, strict=True):
        assert mine == theirs


def test_the_run_folder_holds_what_the_readme_says(finished_cycle):
    names = {p.name for p in finished_cycle.iterdir()}
    assert {"config.yaml", "environment.json", "metrics.jsonl", "rollouts.jsonl", "repairs.jsonl"} <= names
    assert {"results.json", "report.md", "learning.png", "frontier.png", "model"} <= names
    results = json.loads((finished_cycle / "results.json").read_text())
    rows = [(row["name"], row["phase"]) for row in results["rows"]]
    assert rows[:4] == [("direct", "start"), ("policy", "rl"), ("policy", "sft"), ("policy", "rl-2")]
    assert all(row["metrics"]["em"]["n"] == 10 for row in results["rows"])
    assert sum(bool(row.get("best")) for row in results["rows"]) == 1


def test_a_finished_run_is_not_run_again(finished_cycle):
    before = {p: p.stat().st_mtime_ns for p in finished_cycle.rglob("*.jsonl")}
    run(arguments(finished_cycle))
    assert {p: p.stat().st_mtime_ns for p in finished_cycle.rglob("*.jsonl")} == before


def test_the_folder_of_another_config_is_refused(finished_cycle):
    with pytest.raises(CheckpointError, match=r"another configuration[\s\S]*seed: there 0, now 7"):
        run(["cycle", "-c", TINY, "--run_dir", str(finished_cycle), "--seed", "7"])


def test_a_folder_that_is_no_run_folder_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match=r"not a run folder.*thesis\.tex"):
        run(["cycle", "-c", TINY, "--run_dir", str(tmp_path)])
    assert (tmp_path / "thesis.tex").read_text() == "x"


def test_a_schedule_that_cannot_work_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nothing to learn from"):
        run(["cycle", "-c", TINY, "--run_dir", str(tmp_path / "r"), "--phases", '[{"kind": "sft"}]'])
