"""The `harvest` phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rpl.core.progress import progress_bar
from rpl.core.records import Question
from rpl.environment.environment import Environment
from rpl.policy.bundle import check_primitives
from rpl.policy.prompts import Style
from rpl.repair.harvest import HarvestConfig, harvest
from rpl.sampling.opening import OpeningConfig, open_policy


def harvest_policy(
    out: Path,
    questions: Sequence[Question],
    *,
    policy: str,
    environment: Environment,
    style: Style | None,
    thinking: bool | None,
    opening: OpeningConfig,
    config: HarvestConfig,
    rollouts: Path | None = None,
    phase: str | None = None,
    model_name: str | None = None,
    enough: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Harvests a policy's failures on training questions into `out`, or goes on doing so.

    Args:
        out: The repairs file.
        questions: Training questions.
        policy: Model folder or name.
        environment: Where programs run.
        style: Prompt style; `None` takes what the policy's folder says.
        thinking: Whether text before a tag is allowed; `None` likewise.
        opening: Device, precision and sampler.
        config: Search, control, benefit.
        rollouts: Recorded rollouts of the policy; new samples are drawn only for questions that have too few.
        phase: Only rollouts of this phase are used; by default all.
        model_name: What the records call the policy; by default `policy`.
        enough: Asked before each chunk but the first; where it says yes, the other questions are left out.

    Returns:
        The summary of the harvest.
    """
    loaded = open_policy(policy, style, thinking, opening)
    check_primitives(loaded.contract, environment.library.primitives, policy)
    with progress_bar(len(questions), f"harvest {out.parent.name}", "q") as bar:
        return harvest(
            questions,
            renderer=loaded.renderer,
            sampler=loaded.sampler,
            model=loaded.model,
            environment=environment,
            config=config,
            out=out,
            model_name=model_name or policy,
            rollouts=rollouts,
            phase=phase,
            identity=loaded.identity,
            progress=bar.update,
            enough=enough,
        )
