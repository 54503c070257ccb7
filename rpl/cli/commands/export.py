"""`rpl export`: the policy of a training checkpoint, sharded or not, as an ordinary model folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rpl.cli.commands.parsing import call
from rpl.core.progress import say


def export(checkpoint: str, out: str, start_model: str | None = None) -> Path:
    """Writes the policy of a checkpoint as a Hugging Face folder; needs no GPU, and no peft to load it later.

    Args:
        checkpoint: A checkpoint file, or the folder of shards that an FSDP2 run wrote.
        out: The model folder to write; an earlier one of this name is replaced.
        start_model: Where the run's start model is now, if it was moved since.
    """
    from rpl.policy.weights.consolidate import export_checkpoint

    folder = export_checkpoint(Path(checkpoint), Path(out), start_model)
    say(f"wrote {folder}; start from it with --model.init_from {folder}")
    return folder


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl export`."""
    return call("export", export, args, positional=["checkpoint"])
