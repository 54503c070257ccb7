"""The `rl` and `sft` phases: one call of `rpl fit` each, on composed YAML, resumed from its last checkpoint."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from rpl.core import signals
from rpl.core.errors import CheckpointError, RPLError
from rpl.core.files import write_text
from rpl.core.progress import say
from rpl.policy.weights.checkpoint_files import newest_whole


def fit(
    folder: Path,
    *,
    run_dir: Path,
    phase: str,
    configs: Sequence[Path],
    trainer: Mapping[str, Any],
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    seed: int,
    checkpoint_every: int,
) -> Path:
    """Trains one phase and returns the folder of the policy it left.

    Args:
        folder: The phase's folder.
        run_dir: The run folder, which gets the records.
        phase: Name of the phase.
        configs: LightningCLI files, the task file among them, in order.
        trainer: Trainer arguments over those of the files.
        model: Arguments of the module over those of the files.
        data: Arguments of the datamodule over those of the files.
        seed: Seed of everything.
        checkpoint_every: Optimizer steps between checkpoints.

    Raises:
        CheckpointError: Training ended without leaving a policy.
        RPLError: The processes of a training on several devices failed.
        Stopped: A signal ended it.
    """
    policy = folder / "policy"
    checkpoints = folder / "checkpoints"
    patch = {
        "seed_everything": seed,
        "trainer": {
            "default_root_dir": str(folder),
            "logger": False,  # RunRecorder writes everything that is logged
            "callbacks": [
                {
                    "class_path": "rpl.training.callbacks.RunRecorder",
                    "init_args": {"run_dir": str(run_dir), "phase": phase},
                },
                {"class_path": "rpl.training.callbacks.ExportPolicy", "init_args": {"dirpath": str(policy)}},
                {"class_path": "lightning.pytorch.callbacks.TQDMProgressBar"},
                {
                    "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
                    "init_args": {
                        "dirpath": str(checkpoints),
                        "filename": "{step}",
                        "every_n_train_steps": checkpoint_every,
                        "monitor": "step",  # the newest two: one is left when the other is damaged
                        "mode": "max",
                        "save_top_k": 2,
                    },
                },
            ],
            **trainer,
        },
        "model": {"init_args": dict(model)},
        "data": {"init_args": dict(data)},
    }
    config = folder / "fit.yaml"
    write_text(config, yaml.safe_dump(patch, sort_keys=False, allow_unicode=True))
    args = ["fit"]
    for file in (*configs, config):
        args += ["-c", str(file)]
    newest, damaged = newest_whole(checkpoints)
    for reason in damaged:
        say(f"{phase}: {reason}")
    if newest is not None:
        say(f"{phase} goes on from {newest}")
        args += ["--ckpt_path", str(newest)]
    elif damaged:
        say(f"{phase} begins again: none of its checkpoints is whole")
    if trainer.get("devices", 1) in (1, "1", [0]) and trainer.get("num_nodes", 1) == 1:
        from rpl.training.lightning_cli import RPLCLI

        RPLCLI(args)
    else:
        _fit_in_processes(args, phase)
    signals.check()
    if not (policy / "config.json").is_file():
        raise CheckpointError(f"{phase}: training ended without leaving a policy in {policy}")
    return policy


def _fit_in_processes(args: Sequence[str], phase: str) -> None:
    """Runs `rpl fit` by itself: Lightning starts the other ranks from a process's command line.

    A signal is passed on, and waited for: the ranks leave a checkpoint.
    """
    with subprocess.Popen([sys.executable, "-m", "rpl", *args]) as process:
        signals.defer(True)
        try:
            told = False
            while process.poll() is None:
                if signals.requested() is not None and not told:
                    process.terminate()
                    told = True
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            signals.defer(False)
            if process.poll() is None:
                process.kill()
    signals.check()
    if process.returncode != 0:
        raise RPLError(f"{phase}: training ended with status {process.returncode}; its own message is above")
