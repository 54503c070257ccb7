"""Runs a schedule: phase after phase in one run folder, each skipped when it is done and resumed when it is not."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import Path_fr

from rpl.core.errors import ConfigError, RPLError
from rpl.core.files import digest, write_text
from rpl.core.progress import say
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.environment.gold import check_gold
from rpl.evaluation.protocol import questions_digest
from rpl.policy.identity import folder_identity
from rpl.policy.loading import resolve_model
from rpl.policy.prompts import Style
from rpl.retrieval.engines import config_values
from rpl.rollouts.requests import RolloutConfig
from rpl.sampling.opening import OpeningConfig
from rpl.schedule.clock import Clock, Limit
from rpl.schedule.folder import RunFolder
from rpl.schedule.inputs import begin, check_outputs, check_run, phase_inputs, phase_outputs
from rpl.schedule.phase_runs import run_phase
from rpl.schedule.phases import Fragment, PhaseConfig, Schedule, name_phases
from rpl.schedule.sampling_settings import configured_opening

if TYPE_CHECKING:
    from rpl.datamodules.qa import QADataModule
    from rpl.schedule.plan import Plan


def cycle(
    run_dir: str,
    phases: list[PhaseConfig],
    rl: list[Path_fr],
    sft: list[Path_fr],
    policy: str = "smollm2-135m",
    prompt_style: Style | None = None,
    environment: EnvironmentConfig = EnvironmentConfig(),
    rollout: RolloutConfig = RolloutConfig(),
    data: Fragment | None = None,
    trainer: Fragment | None = None,
    model: Fragment | None = None,
    opening: OpeningConfig | None = None,
    seed: int = 0,
    budget_minutes: float | None = None,
) -> dict[str, Any]:
    """Runs a schedule of phases (RL, harvest, SFT, RL, …, eval) in one run folder, or goes on with it.

    A phase that is done is skipped, one that was interrupted goes on where it was; the same command does both. A phase
    whose folder was deleted is done again, and after it those that were made from what it left, where that differs now.
    A run folder is refused that belongs to another configuration, or to another model, corpus or questions under the
    same names, or in which a phase's policy or repairs were changed afterwards.

    Args:
        run_dir: The run folder.
        phases: The schedule, in order.
        rl: LightningCLI files of `rl` phases, in order: base.yaml and rl.yaml, then patches.
        sft: LightningCLI files of `sft` phases, in order: base.yaml and sft.yaml, then patches.
        policy: The start model: a folder, a hub name, `smollm2-135m` or `tiny`.
        prompt_style: `compact` (for small models) or `documented` (describes the language in full); by default what the
            start model's `rpl.json` says, and `compact` where there is none.
        opening: Device, precision and sampler of harvest and evaluation; by default those of training.
        environment: Corpus, indexes, limits and sandbox workers, for all phases.
        rollout: Turns, tokens and temperature of rollouts, for all phases.
        data: Arguments of the datamodules (`questions`, `num_train`, …), for all phases.
        trainer: Trainer arguments of all `rl` and `sft` phases.
        model: Module arguments of all `rl` and `sft` phases.
        seed: Seed of everything.
        budget_minutes: Minutes that the whole may take on this machine, all sessions together. Its speed is measured,
            numbers of questions, steps and iterations are cut to fit (see `rpl.schedule.budget`), and the clock is
            watched while it runs. `null` runs the whole schedule, however long it takes.

    Raises:
        ConfigError: A setting is out of its range, or the budget does not suffice for a useful run.
        CheckpointError: The run folder belongs to another configuration.
    """
    if budget_minutes is not None and not budget_minutes > 0:
        raise ConfigError(f"budget_minutes must be above 0, or null for the whole schedule; got {budget_minutes:g}")
    names = name_phases(phases)
    data, trainer, model = data or {}, trainer or {}, model or {}
    configs = {"rl": [Path(p.absolute) for p in rl], "sft": [Path(p.absolute) for p in sft]}
    resolved = {
        "policy": policy,
        "prompt_style": prompt_style,
        "environment": config_values(environment),
        "rollout": asdict(rollout),
        "data": data,
        "trainer": trainer,
        "model": model,
        "seed": seed,
        "budget_minutes": budget_minutes,
        "phases": [{**asdict(replace(p, name=n))} for p, n in zip(phases, names, strict=True)],
        "configs": {kind: {p.name: digest(p.read_bytes()) for p in files} for kind, files in configs.items()},
    }
    run = RunFolder(Path(run_dir), json.loads(json.dumps(resolved)))
    schedule = Schedule(
        run=run,
        policy=policy,
        environment=environment,
        rollout=rollout,
        style=prompt_style,
        thinking=model.get("thinking"),
        opening=opening or configured_opening(trainer, model, configs["rl"] + configs["sft"]),
        data=data,
        trainer=trainer,
        model=model,
        configs=configs,
        seed=seed,
        budget_minutes=budget_minutes,
    )
    try:
        return _run_phases(schedule, phases, names)
    finally:
        run.close()


def _run_phases(schedule: Schedule, phases: list[PhaseConfig], names: list[str]) -> dict[str, Any]:
    from rpl.datamodules.qa import QADataModule
    from rpl.reports.report import write_report
    from rpl.reports.results import read_results
    from rpl.reports.tables import terminal_table
    from rpl.schedule.plan import make_plan

    run, questions = schedule.run, QADataModule(**schedule.data)
    clock = Clock(run.path / "clock.json")
    try:
        plan = make_plan(schedule, phases, names, questions, clock.spent_s)
        say(plan.text)
        schedule, phases = plan.apply(schedule, phases)
        _check_contents(schedule, phases, questions)  # of the library that the plan uses
    except RPLError:
        run.forget()  # so that the same command with a larger budget or the right corpus is not refused
        raise
    with clock:
        _run_all(schedule, phases, names, plan, clock, questions)
    results = read_results(run.path)
    if results["rows"]:
        report = write_report(run.path)
        sys.stdout.write(terminal_table(results) + "\n")
        say(f"report: {report}")
    return results


def _run_all(
    schedule: Schedule,
    phases: list[PhaseConfig],
    names: list[str],
    plan: Plan,
    clock: Clock,
    questions: QADataModule,
) -> None:
    run = schedule.run
    current, policies, repairs = schedule.policy, dict[str, Path](), list[Path]()
    recorded: str | None = None  # the phase whose rollouts are those of the current policy
    for index, (phase, name) in enumerate(zip(phases, names, strict=True)):
        folder = run.phase(index, name)
        same = begin(folder, _inputs(schedule, phase, current, policies, repairs))
        outcome = run.done(folder) if same else None
        if outcome is not None:
            check_outputs(folder, outcome)
        if outcome is None and phase.kind in ("rl", "sft") and plan.amounts[index] == 0:
            outcome = {"left_out": "the budget leaves no time for it"}
            run.finish(folder, outcome)
            say(f"phase {index + 1}/{len(phases)}: {name} is left out to keep the budget")
        elif outcome is None:
            say(f"phase {index + 1}/{len(phases)}: {name}")
            began = time.monotonic()
            limit = Limit(clock, name, schedule.budget_minutes, plan.seconds[index:])
            outcome = run_phase(schedule, phase, name, folder, current, policies, repairs, recorded, questions, limit)
            outcome |= {"seconds": round(time.monotonic() - began, 1), "outputs": phase_outputs(folder)}
            run.finish(folder, outcome)
            gc.collect()
            say(f"phase {index + 1}/{len(phases)}: {name} took {outcome['seconds'] / 60:.1f} min")
        else:
            say(f"phase {index + 1}/{len(phases)}: {name} is done already")
        if "left_out" in outcome:
            continue
        if phase.kind in ("rl", "sft"):
            current, policies[name] = str(folder / "policy"), folder / "policy"
            recorded = name if phase.kind == "rl" else None
        elif phase.kind == "harvest":
            repairs.append(folder / "repairs.jsonl")
            _join(repairs, run.path / "repairs.jsonl")
    if policies:
        _point(run.path / "model", Path(current))


def _check_contents(schedule: Schedule, phases: list[PhaseConfig], data: QADataModule) -> None:
    """Compares model, corpus and questions with those that the run began with, and the questions with the corpus."""
    splits = data.splits
    kinds = {phase.kind for phase in phases}
    pools = {phase.eval.split for phase in phases if phase.kind == "eval"}
    used = {
        "training questions": data.train_questions_used if kinds & {"rl", "sft", "harvest"} else (),
        "validation questions": data.val_questions_used if kinds & {"rl", "sft"} or "val" in pools else (),
        "test questions": data.test_questions_used if "test" in pools else (),
    }
    with Environment(schedule.environment, progress=say) as environment:
        start = folder_identity(resolve_model(schedule.policy))
        questions = questions_digest([*splits.train, *splits.val, *splits.test])
        for what, pool in used.items():
            check_gold(pool, environment, what)
        check_run(schedule.run.path, {**start, **environment.identity, "questions": questions})


def _inputs(
    schedule: Schedule, phase: PhaseConfig, current: str, policies: dict[str, Path], repairs: list[Path]
) -> dict[str, Any]:
    """Returns the digests of what a phase begins with, besides what all phases share."""
    if phase.kind == "eval":
        wanted = phase.eval.after
        return phase_inputs({f"after {n}": path for n, path in policies.items() if wanted is None or n in wanted}, ())
    given = {**schedule.data, **phase.data}.get("repairs", repairs) if phase.kind == "sft" else ()
    return phase_inputs({"policy": current}, [given] if isinstance(given, str) else given)


def _join(files: list[Path], out: Path) -> None:
    """Writes the lines of all files into one, if they do not stand there already."""
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    if not out.exists() or out.read_text(encoding="utf-8") != text:
        write_text(out, text)


def _point(link: Path, target: Path) -> None:
    """Makes `link` lead to `target`, in one step."""
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    os.replace(temporary, link)
