"""Plans a schedule: measures the machine, cuts the schedule to the budget, records the plan and prints it.

The plan is made once and kept in the run folder (`plan.json`), so that a run that is resumed, perhaps on another
machine, goes on with the same amounts and the same number format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rpl.core.errors import ConfigError
from rpl.core.files import write_json
from rpl.core.machine import fastest_precision, matmul_rate, use_threads_for
from rpl.core.progress import say
from rpl.estimate.schedule import Costs, peak_bytes
from rpl.estimate.shapes import NoEstimateError, PolicySize, size_of
from rpl.estimate.training import GIB, Settings, Workload
from rpl.schedule.budget import PILOT, Amounts, fit_budget, scaled
from rpl.schedule.phases import PhaseConfig, Schedule

if TYPE_CHECKING:
    from rpl.datamodules.qa import QADataModule

FILE = "plan.json"
ATLAS_PASSAGES = {"atlas": 3000, "atlas-mini": 300}
"""About how many passages the embedded corpora have; encoding a corpus of the user's own is not estimated."""
TINY = "rpl cycle -c configs/tiny_cycle.yaml"


@dataclass(frozen=True)
class Plan:
    """What a run does."""

    precision: str
    """Of training and sampling, as Lightning calls it."""
    amounts: tuple[int, ...]
    """Of each phase: RL iterations, SFT steps, harvested questions, evaluation questions."""
    full: tuple[int, ...]
    """What the schedule asks for."""
    dense: bool
    """Whether dense search is offered."""
    seconds: tuple[float, ...]
    """Estimate of each phase; all 1 where there is no estimate."""
    estimated: bool
    """Whether there is one."""
    text: str
    """What is printed."""

    def apply(self, schedule: Schedule, phases: Sequence[PhaseConfig]) -> tuple[Schedule, list[PhaseConfig]]:
        """Returns the schedule and its phases with these amounts."""
        library = schedule.environment.library
        if library.dense and not self.dense:
            library = replace(library, dense=False)
        environment = replace(schedule.environment, library=library)
        trainer = {**schedule.trainer, "precision": self.precision}
        changed = [
            replace(phase, trainer={**phase.trainer, "max_steps": amount})
            if phase.kind in ("rl", "sft")
            else replace(
                phase,
                num_questions=amount,
                harvest=replace(phase.harvest, control_questions=controlled(phase, amount, full)),
            )
            if phase.kind == "harvest"
            else replace(phase, eval=replace(phase.eval, num_questions=amount))
            for phase, amount, full in zip(phases, self.amounts, self.full, strict=True)
        ]
        return replace(schedule, environment=environment, trainer=trainer), changed


def controlled(phase: PhaseConfig, amount: int, full: int) -> int | None:
    """Returns how many questions the control of a harvest has: the share that the harvest itself has, and at least one.

    Args:
        phase: The harvest.
        amount: Questions that are harvested.
        full: Questions that the schedule asks for.
    """
    asked = phase.harvest.control_questions
    return asked if not asked or amount == full else max(1, asked * amount // full)


def make_plan(
    schedule: Schedule, phases: Sequence[PhaseConfig], names: Sequence[str], questions: QADataModule, spent_s: float = 0
) -> Plan:
    """Reads the plan of a run folder, or measures this machine and makes one.

    Args:
        schedule: What the phases share.
        phases: As the user wrote them.
        names: Of the phases.
        questions: The data.
        spent_s: Seconds that were spent before.

    Raises:
        ConfigError: The budget does not suffice for the smallest run of this schedule.
    """
    path = schedule.run.path / FILE
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        lists = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
        return Plan(**{**stored, **lists})
    plan = _new_plan(schedule, phases, names, questions, spent_s)
    write_json(path, asdict(plan))
    return plan


def _new_plan(
    schedule: Schedule, phases: Sequence[PhaseConfig], names: Sequence[str], questions: QADataModule, spent_s: float
) -> Plan:
    precision = _precision(schedule)
    dense = schedule.environment.library.dense
    full = tuple(_full(schedule, phase, questions) for phase in phases)
    where = f"{len(phases)} phases in {schedule.run.path}; policy {schedule.policy}"
    try:
        size = size_of(schedule.policy)
    except NoEstimateError as error:
        watched = f"; the clock alone keeps it to {schedule.budget_minutes:g} min" if schedule.budget_minutes else ""
        text = f"{where}\nrpl: {error}: the schedule runs as it is written{watched}"
        return Plan(precision, full, full, dense, (1.0,) * len(phases), False, text)
    from rpl.modules.batches.micro_batches import token_budget

    settings = Settings(
        mixed=precision == "bf16-mixed",
        packed=schedule.model.get("packing", "shared") == "shared",
        tokens_per_micro_batch=token_budget(schedule.model.get("tokens_per_micro_batch"), "cpu"),
    )
    use_threads_for(size.parameters)
    costs = Costs(size.cost, settings, measured_rate(size, settings.mixed), schedule.rollout.batch_size)

    def estimate(amounts: Amounts) -> list[float]:
        return estimates(costs, schedule, phases, amounts, full)

    kinds = [phase.kind for phase in phases]
    amounts: Amounts | None = scaled(kinds, full, dense, 1.0)
    budget = schedule.budget_minutes
    if budget is not None:
        amounts = fit_budget(kinds, full, dense, lambda a: sum(estimate(a)), 60 * budget - spent_s)
    if amounts is None:
        least = sum(estimate(scaled(kinds, full, dense, 0.0))) / 60
        raise ConfigError(
            f"budget_minutes: {budget:g} minutes do not suffice here ({costs.flops / 1e9:.0f} GFLOP/s in "
            f"{precision}): the smallest useful run of this schedule takes about {_minutes(60 * least)} min. "
            f"Give --budget_minutes {least * 1.1 + 1:.0f} or more, or see all parts work with a tiny model: {TINY}"
        )
    each = estimate(amounts)
    text = f"{where}, {size.parameters / 1e6:.0f} M parameters; {costs.flops / 1e9:.0f} GFLOP/s in {precision}\n"
    text += f"rpl: estimate: {_minutes(sum(each))} min"
    text += f" of the budget of {budget:g} min" if budget is not None else ""
    text += f" ({', '.join(f'{name} {_minutes(s)}' for name, s in zip(names, each, strict=True))})"
    text += f", {_memory(size, settings, schedule, phases, costs)}"
    disk = size.parameters * (4 * sum(kind in ("rl", "sft") for kind in kinds) + 24)
    text += f", {disk / GIB:.1f} GiB of disk"
    if budget is not None and amounts.scale < 1:
        done = [f"{name} {a} of {f}" for name, a, f in zip(names, amounts.phases, full, strict=True)]
        text += f"\nrpl: cut to fit the budget: {', '.join(done)}"
        text += ", no dense search" if dense and not amounts.dense else ""
        text += "; --budget_minutes null runs all of it"
    return Plan(precision, amounts.phases, full, amounts.dense, tuple(each), True, text)


def measured_rate(size: PolicySize, mixed: bool) -> float:
    """Measures matrix products in the shape of a policy's layers, in FLOP/s."""
    shape = size.shape
    inner, columns = (576, 1536) if shape is None else (shape.hidden, shape.intermediate)
    return matmul_rate("bfloat16" if mixed else "float32", 256, inner, columns, for_s=0.5)


def estimates(
    costs: Costs, schedule: Schedule, phases: Sequence[PhaseConfig], amounts: Amounts, full: Sequence[int]
) -> list[float]:
    """Returns the seconds of each phase.

    Args:
        costs: Of the policy on this machine.
        schedule: What the phases share.
        phases: With their settings; how much they do stands in `amounts`.
        amounts: How much each does.
        full: How much the schedule asks for.
    """
    trained = sum(p.kind in ("rl", "sft") and amount > 0 for p, amount in zip(phases, amounts.phases, strict=True))
    found = []
    for phase, amount, whole in zip(phases, amounts.phases, full, strict=True):
        if phase.kind in ("rl", "sft"):
            found.append(costs.training(_work(costs, schedule, phase), amount))
        elif phase.kind == "harvest":
            found.append(costs.harvest(amount, phase.harvest.num_samples, controlled(phase, amount, whole) or 0))
        else:
            policies = trained if phase.eval.after is None else min(trained, len(phase.eval.after))
            policies += len(phase.eval.agents)
            asked = amount + PILOT if schedule.budget_minutes is not None and amount > PILOT else amount
            found.append(costs.evaluation(asked, policies, phase.eval.fixed_k, phase.eval.direct))
    if amounts.dense:
        found[0] += costs.index(ATLAS_PASSAGES.get(schedule.environment.library.corpus, 0))
    return found


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}" if seconds < 600 else f"{seconds / 60:.0f}"


def _memory(
    size: PolicySize, settings: Settings, schedule: Schedule, phases: Sequence[PhaseConfig], costs: Costs
) -> str:
    if size.shape is None:
        return f"memory: {size.no_estimate}"
    works = [_work(costs, schedule, phase) for phase in phases if phase.kind in ("rl", "sft")]
    return f"{peak_bytes(size.shape, settings, works) / GIB:.1f} GiB of memory"


def _work(costs: Costs, schedule: Schedule, phase: PhaseConfig) -> Workload:
    rl = phase.kind == "rl"
    questions = int(schedule.settings("data", phase).get("batch_size", 8 if rl else 16))
    return costs.work(rl, questions, int(schedule.settings("model", phase).get("group_size", 8)) if rl else 1)


def _precision(schedule: Schedule) -> str:
    given = schedule.trainer.get("precision") or _last(schedule.configs["rl"] or schedule.configs["sft"], "precision")
    if given != "auto":
        return str(given or "32-true")
    import torch

    accelerator = schedule.trainer.get("accelerator", "auto")
    cuda = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    chosen = fastest_precision("cuda" if cuda else "cpu")
    say(f"precision auto is {chosen.trainer}: {chosen.reason}")
    return chosen.trainer


def _last(files: Sequence[Path], name: str) -> Any:
    """Returns what the last of some LightningCLI files says about a Trainer argument."""
    read = [yaml.safe_load(path.read_text(encoding="utf-8")) or {} for path in files]
    found = [trainer[name] for trainer in (file.get("trainer") or {} for file in read) if name in trainer]
    return found[-1] if found else None


def _full(schedule: Schedule, phase: PhaseConfig, questions: QADataModule) -> int:
    """Returns how much a phase does when nothing is cut."""
    if phase.kind in ("rl", "sft"):
        trainer: Mapping[str, Any] = schedule.settings("trainer", phase)
        steps = trainer.get("max_steps", _last(schedule.configs[phase.kind], "max_steps"))
        return int(steps if steps is not None else -1)
    if phase.kind == "harvest":
        there = len(questions.train_questions_used)
        return min(there, there if phase.num_questions is None else phase.num_questions)
    there = len(questions.splits.test if phase.eval.split == "test" else questions.splits.val)
    return min(there, there if phase.eval.num_questions is None else phase.eval.num_questions)
