"""What each kind of phase does: `rl` and `sft` train, `harvest` repairs, `eval` measures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpl.core.errors import ConfigError
from rpl.core.progress import say
from rpl.core.records import Question
from rpl.environment.environment import Environment
from rpl.reports.repairs import report_repairs
from rpl.retrieval.engines import config_values
from rpl.schedule.clock import Limit, affordable
from rpl.schedule.phases import PhaseConfig, Schedule

if TYPE_CHECKING:
    from rpl.datamodules.qa import QADataModule


def run_phase(
    schedule: Schedule,
    phase: PhaseConfig,
    name: str,
    folder: Path,
    current: str,
    policies: dict[str, Path],
    repairs: list[Path],
    recorded: str | None,
    questions: QADataModule,
    limit: Limit,
) -> dict[str, Any]:
    """Runs one phase, or goes on with it.

    Args:
        schedule: What all phases share.
        phase: Its settings.
        name: Its name.
        folder: Its folder.
        current: The policy so far: a folder, or the name of the start model.
        policies: What the training phases before it left, by name.
        repairs: Files of the harvests before it.
        recorded: The phase whose recorded rollouts are those of `current`, if there is one.
        questions: The questions of the run.
        limit: The time that the phase may take.

    Returns:
        What the phase has to say of itself, as JSON values.
    """
    if phase.kind in ("rl", "sft"):
        return _fit(schedule, phase, name, folder, current, repairs, limit)
    with Environment(schedule.environment, progress=say) as environment:
        if phase.kind == "harvest":
            train = questions.train_questions_used[: phase.num_questions]
            called = os.path.relpath(current, schedule.run.path) if policies else current
            return _harvest(
                schedule, phase, folder / "repairs.jsonl", train, current, called, recorded, environment, limit
            )
        return _evaluate(schedule, phase, name, folder, policies, questions, environment, limit)


def _harvest(
    schedule: Schedule,
    phase: PhaseConfig,
    out: Path,
    questions: Sequence[Question],
    current: str,
    called: str,
    recorded: str | None,
    environment: Environment,
    limit: Limit,
) -> dict[str, Any]:
    from rpl.repair.harvest import harvest
    from rpl.sampling.opening import open_policy

    rollouts = schedule.run.path / "rollouts.jsonl"
    summary = harvest(
        questions,
        open_policy(current, schedule.style, schedule.thinking, schedule.opening),
        environment,
        phase.harvest,
        out,
        model_name=called,
        rollouts=rollouts if recorded is not None and rollouts.exists() else None,
        phase=recorded,
        enough=limit.reached,
    )
    report_repairs(schedule.run.path, out)
    return {"repairs": str(out.relative_to(schedule.run.path)), "summary": summary}


def _evaluate(
    schedule: Schedule,
    phase: PhaseConfig,
    name: str,
    folder: Path,
    policies: dict[str, Path],
    questions: QADataModule,
    environment: Environment,
    limit: Limit,
) -> dict[str, Any]:
    from rpl.schedule.evaluate import evaluate_policies

    if not policies:
        raise ConfigError(f"phases: {name!r} has nothing to evaluate; put an rl or sft phase before it")
    wanted = phase.eval.after
    unknown = sorted(set(wanted or ()) - set(policies))
    if unknown and schedule.budget_minutes is None:
        raise ConfigError(f"phases.eval.after names {unknown[0]!r}; the phases so far are {', '.join(policies)}")
    measured = {n: p for n, p in policies.items() if wanted is None or n in wanted} or policies
    pool = questions.splits.test if phase.eval.split == "test" else questions.splits.val
    pool = pool[: phase.eval.num_questions]

    def measure(run_dir: Path, out: Path, count: int, names: dict[str, Any]) -> dict[str, Any]:
        return evaluate_policies(run_dir, out, pool[:count], measured, environment, schedule, phase.eval, names)

    if limit.budget_s is None:
        return measure(schedule.run.path, folder, len(pool), schedule.names)
    pilot = folder / "pilot"
    asked = folder / "questions.json"
    count = affordable(asked, len(pool), limit, lambda count: measure(pilot, pilot, count, schedule.names))
    cut = {"evaluated": f"{count} of {len(pool)} planned questions, in a budget of {schedule.budget_minutes:g} min"}
    return measure(schedule.run.path, folder, count, {**schedule.names, **cut})


def _fit(
    schedule: Schedule, phase: PhaseConfig, name: str, folder: Path, current: str, repairs: list[Path], limit: Limit
) -> dict[str, Any]:
    from rpl.schedule.fit import fit

    data = schedule.settings("data", phase)
    if phase.kind == "sft":
        if not repairs and "repairs" not in data:
            raise ConfigError(f"phases: {name!r} has nothing to learn from; put a harvest before it")
        data.setdefault("repairs", [str(path) for path in repairs])
    policy = fit(
        folder,
        run_dir=schedule.run.path,
        phase=name,
        configs=schedule.configs[phase.kind],
        trainer={**schedule.settings("trainer", phase), **limit.trainer},
        model={
            "policy": schedule.policy,
            "init_from": None if current == schedule.policy else current,
            "prompt_style": schedule.style,
            "environment": config_values(schedule.environment),
            "rollout": asdict(schedule.rollout),
            "seed": schedule.seed,
            **schedule.model,
            **phase.model,
        },
        data={"seed": schedule.seed, **data},
        seed=schedule.seed,
        checkpoint_every=phase.checkpoint_every,
    )
    return {"policy": str(policy.relative_to(schedule.run.path))}
