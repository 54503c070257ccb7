"""`rpl harvest`: finds verified repairs of a policy's failed programs, with the resample control beside them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rpl.cli.commands.parsing import call
from rpl.core.progress import say
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.repair.harvest_config import HarvestConfig
from rpl.sampling.opening import OpeningConfig


def harvest_failures(
    checkpoint: str,
    out: str,
    questions: str | list[str] = "atlas",
    num_questions: int | None = None,
    val_fraction: float = 0.1,
    environment: EnvironmentConfig = EnvironmentConfig(),
    harvest: HarvestConfig = HarvestConfig(),
    prompt_style: Literal["compact", "documented"] | None = None,
    thinking: bool | None = None,
    opening: OpeningConfig = OpeningConfig(),
    rollouts: str | None = None,
) -> dict[str, Any]:
    """Searches verified repairs of a policy's failed programs on training questions; goes on where it was stopped.

    Args:
        checkpoint: Model folder or name of the policy.
        out: The repairs file (JSON lines); its settings and summary are written beside it.
        questions: `atlas`, `atlas-mini`, or questions files; only their training questions are used.
        num_questions: How many; all by default.
        val_fraction: Share of train that is validation where the files have no val rows, as in the datamodules.
        environment: Corpus, indexes and limits.
        harvest: Search, control and benefit.
        prompt_style: The prompt that the policy was trained with; by default what its `rpl.json` says, or `compact`.
        thinking: Whether the policy may write plain text before a tag; by default what its `rpl.json` says, or true.
        opening: Device, precision and sampler.
        rollouts: Recorded rollouts of this policy (rollouts.jsonl of a run): their programs and traces are used; new
            samples are drawn only for questions that have too few.
    """
    from rpl.datamodules.readers import load_splits
    from rpl.repair.harvest import harvest as harvest_repairs
    from rpl.sampling.opening import open_policy

    train = load_splits(questions, val_fraction=val_fraction).train[:num_questions]
    with Environment(environment, progress=say) as env:
        policy = open_policy(checkpoint, prompt_style, thinking, opening)
        recorded = None if rollouts is None else Path(rollouts)
        summary = harvest_repairs(train, policy, env, harvest, Path(out), rollouts=recorded)
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    return summary


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl harvest`."""
    return call("harvest", harvest_failures, args)
