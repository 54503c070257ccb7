"""The `rl` and `sft` phases: one call of `rpl fit` each, on composed YAML, resumed from its last checkpoint."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rpl.core.errors import CheckpointError
from rpl.core.files import write_text
from rpl.core.progress import say


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
    """
    policy = folder / "policy"
    checkpoints = folder / "checkpoints"
    patch = {
        "seed_everything": seed,
        "trainer": {
            "default_root_dir": str(folder),
            "logger": {
                "class_path": "lightning.pytorch.loggers.CSVLogger",
                "init_args": {"save_dir": str(folder), "name": "", "version": "log"},
            },
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
    newest = max(checkpoints.glob("*.ckpt"), key=lambda p: p.stat().st_mtime_ns, default=None)
    if newest is not None:
        say(f"{phase} goes on from {newest}")
        args += ["--ckpt_path", str(newest)]
    if trainer.get("devices", 1) in (1, "1", [0]) and trainer.get("num_nodes", 1) == 1:
        from rpl.training.lightning_cli import RPLCLI

        RPLCLI(args)
    else:
        # Lightning starts the other ranks from this process's command line, which must then be `rpl fit`
        subprocess.run([sys.executable, "-m", "rpl", *args], check=True)
    if not (policy / "config.json").is_file():
        raise CheckpointError(f"{phase}: training ended without leaving a policy in {policy}")
    return policy
