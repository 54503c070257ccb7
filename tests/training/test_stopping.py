"""Runs that a signal ends: the status says so, and one line says how to go on. Real processes, real signals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience, wait_until

from rpl.cli.main import main

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = [part for name in ("base", "rl", "tiny") for part in ("-c", str(CONFIGS / f"{name}.yaml"))]
TWO = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]


def command(args, log):
    """What a started process does: the command, as the leader of a process group."""
    os.setsid()
    with open(log, "a") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    main(args)


def fit(folder, *more):
    return ["fit", *FILES, "--trainer.max_steps", "2000", "--trainer.logger.save_dir", str(folder), *more]


def said(log):
    return [line.rpartition("rpl: ")[2] for line in log.read_text().split("\n") if "rpl: stopped by" in line]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_one_process_leaves_a_checkpoint_and_says_how_to_go_on(number, status, tmp_path, forks):
    log = tmp_path / "log"
    process = forks.Process(target=command, args=(fit(tmp_path), log))
    process.start()
    metrics = tmp_path / "fit" / "version_0" / "metrics.csv"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size, "the first iteration")
    os.kill(process.pid, number)
    process.join(patience(60))
    assert process.exitcode == status, log.read_text()[-2000:]
    (path,) = (tmp_path / "fit" / "version_0" / "checkpoints").glob("*-stopped.ckpt")
    (line,) = said(log)
    assert line.startswith(f"stopped by {number.name}; go on from {path} with: rpl fit")
    assert line.endswith(f"--ckpt_path {path}")
    step = int(path.name.removeprefix("step=").partition("-")[0])
    main(["fit", *FILES, "--trainer.max_steps", str(step + 1), "--ckpt_path", str(path),
          "--trainer.logger.save_dir", str(tmp_path / "again")])  # fmt: skip
    assert list((tmp_path / "again").rglob(f"*step={step + 1}.ckpt"))


@pytest.mark.dist
@pytest.mark.parametrize("to", ["all", "the other rank"])
@pytest.mark.parametrize("when", ["in training", "while the library is built"])
def test_two_processes_end_together(to, when, tmp_path):
    log = tmp_path / "log"
    environment = {k: v for k, v in os.environ.items() if k not in ("LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR")}
    if when != "in training":
        environment["RPL_HOME"] = str(tmp_path / "home")
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rpl", *fit(tmp_path, *TWO)],
            stdout=out, stderr=out, start_new_session=True, env=environment,
        )  # fmt: skip
        log_folder = tmp_path / "fit" / "version_0"
        ready = log_folder / "metrics.csv" if when == "in training" else log_folder
        try:
            wait_until(lambda: ready.exists() and ready.stat().st_size, "the run to get there")
            if to == "all":
                os.killpg(process.pid, signal.SIGTERM)
                os.killpg(process.pid, signal.SIGTERM)
            else:
                os.kill(other_rank(process.pid), signal.SIGTERM)
            assert process.wait(patience(60)) == 143, log.read_text()[-2000:]
            assert len(said(log)) == 1
            assert bool(list(log_folder.glob("checkpoints/*-stopped.ckpt"))) == (when == "in training")
            wait_until(lambda: not living(process.pid), "all processes of the run to end")
        finally:
            for pid in living(process.pid):
                os.kill(pid, signal.SIGKILL)


def living(session):
    """The processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3]) == session:
            found.append(int(entry.parent.name))
    return found


def other_rank(session):
    return next(pid for pid in living(session) if b"LOCAL_RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())


def test_a_schedule_that_is_stopped_says_that_the_same_command_goes_on(tmp_path, forks):
    log = tmp_path / "log"
    args = ["cycle", "-c", str(CONFIGS / "tiny_cycle.yaml"), "--run_dir", str(tmp_path / "run")]
    process = forks.Process(target=command, args=(args, log))
    process.start()
    wait_until(lambda: (tmp_path / "run" / "metrics.jsonl").exists(), "the first iteration")
    os.kill(process.pid, signal.SIGTERM)
    process.join(patience(60))
    assert process.exitcode == 143, log.read_text()[-2000:]
    (line,) = said(log)
    assert line.startswith("stopped by SIGTERM; go on with the same command: rpl cycle")
    assert list((tmp_path / "run").glob("00-rl/checkpoints/*.ckpt"))
