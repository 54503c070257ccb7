"""The `harvest` phase, and what the results table says of repair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from rpl.core.files import read_appended
from rpl.core.progress import progress_bar, say
from rpl.core.records import Question, Repair, from_dict
from rpl.environment.environment import Environment
from rpl.repair.harvest import HarvestConfig, harvest
from rpl.reports.repairs import Attempt, attempts_of, repair_summary
from rpl.reports.results import set_repair
from rpl.sampling.opening import load_local_policy


def harvest_policy(
    out: Path,
    questions: Sequence[Question],
    *,
    policy: str,
    environment: Environment,
    style: Literal["compact", "documented"],
    dtype: Literal["float32", "bfloat16"],
    config: HarvestConfig,
    rollouts: Path | None = None,
    model_name: str | None = None,
    enough: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Harvests a policy's failures on training questions into `out`, or goes on doing so.

    Args:
        out: The repairs file.
        questions: Training questions.
        policy: Model folder or name.
        environment: Where programs run.
        style: Prompt style.
        dtype: Autocast type of sampling.
        config: Search, control, benefit.
        rollouts: Recorded rollouts to take the programs from, in place of new samples.
        model_name: What the records call the policy; by default `policy`.
        enough: Asked before each chunk but the first; where it says yes, the other questions are left out.

    Returns:
        The summary of the harvest.
    """
    loaded = load_local_policy(policy, style, dtype)
    # A harvest goes on in its file, so that one over the first questions can be followed by one over more of them.
    ends = [len(questions)] if enough is None else [*range(config.chunk_size, len(questions), config.chunk_size)]
    ends = ends if ends and ends[-1] == len(questions) else [*ends, len(questions)]
    with progress_bar(len(questions), f"harvest {out.parent.name}", "q") as bar:
        for number, end in enumerate(ends):
            if number and enough is not None and enough():
                say(f"harvest: {ends[number - 1]} of {len(questions)} questions were tried, to keep the budget")
                break
            summary = harvest(
                questions[:end],
                renderer=loaded.renderer,
                sampler=loaded.sampler,
                model=loaded.model,
                environment=environment,
                config=config,
                out=out,
                model_name=model_name or policy,
                rollouts=rollouts,
                identity=loaded.identity,
                progress=lambda done: bar.update(done) if enough is None else None,
            )
            if enough is not None:
                bar.update(end - bar.n)
    return summary


def report_repair(run_dir: Path, repairs: Path) -> None:
    """Writes the repair section of `results.json`: all failures, and mutation against its control where that ran."""
    records = [from_dict(Repair, line) for line in read_appended(repairs)]
    controlled = [r for r in records if "control" in r.extra]
    readings = {
        name: {
            r.question_id: {metric: r.extra["benefit"][arm][metric] for metric in ("em", "gold_logprob")}
            for r in controlled
            if "benefit" in r.extra
        }
        for arm, name in (("repaired", "mutation"), ("resampled", "resample control"), ("original", "failed program"))
    }
    summary = repair_summary({"mutation": attempts_of(records)}, verdicts=[r.verdict for r in records])
    if controlled:
        paired = repair_summary(
            {"mutation": attempts_of(controlled), "resample control": [_control(r) for r in controlled]},
            benefit=readings if readings["mutation"] else None,
        )
        paired["arms"] = [
            *({**arm, "name": f"{arm['name']}, all failures"} for arm in summary["arms"]),
            *({**arm, "name": f"{arm['name']}, where the control ran"} for arm in paired["arms"]),
        ]
        summary = {**paired, "failures": summary["failures"], "verdicts": summary["verdicts"]}
    set_repair(run_dir, summary)


def _control(record: Repair) -> Attempt:
    control = record.extra["control"]
    return Attempt(record.question_id, bool(control["repaired"]), int(control["executions"]))
