"""What a schedule will cost, said before anything is loaded: minutes a phase, memory, disk.

Tokens are counted and divided by what a half-second measurement of this machine's matrix products lets one expect (see
`rpl.estimate.training`, which also knows the memory). How many tokens a question costs was measured once, with
SmolLM2-135M on the Atlas data; the time is good to a factor of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rpl.estimate.training import GIB, ModelShape, Settings, Workload, memory, peaks, seconds
from rpl.schedule.config import PhaseConfig

if TYPE_CHECKING:
    from rpl.schedule.run import Schedule

SHARED = 0.5
"""Share of a group's transcripts that is left to compute once equal programs and equal results are computed once."""
FRAGMENTED = 1.5
"""What a process that goes through all phases holds for each byte that one phase alone would need."""
SEARCH_S = 0.12
"""Seconds of verified search a failed question in a harvest."""
START_S = 12.0
"""Seconds to import, load and export around a phase."""
PROMPT, WRITTEN, SHOWN = 40, 50, 130
"""Tokens of a typical compact prompt, of what the policy writes for a question, of what programs show it."""
PASSAGE = 55
"""Tokens of a typical passage."""
DIRECT = 10
"""Tokens of a typical answer."""


@dataclass(frozen=True)
class Costs:
    """Estimates the phases of a schedule.

    Args:
        shape: The policy.
        settings: How it computes.
        flops: What large matrix products reach on this machine, in FLOP/s.
        rows: Most transcripts in flight at a time.
    """

    shape: ModelShape
    settings: Settings
    flops: float
    rows: int = 64

    def phase(self, phase: PhaseConfig, data: Any, model: Any, trainer: Any, trained: int) -> float:
        """Returns the seconds of a phase.

        Args:
            phase: The phase.
            data: Settings of its datamodule (RL and SFT).
            model: Settings of its module.
            trainer: Settings of its trainer.
            trained: How many policies the schedule trains: an evaluation measures each.
        """
        if phase.kind in ("rl", "sft"):
            work = self.work(phase, data, model)
            steps = int(trainer.get("max_steps", 100 if phase.kind == "rl" else 75))
            return START_S + steps * self._spent(work)
        if phase.kind == "harvest":
            count = phase.num_questions or 1000
            controlled = min(phase.harvest.control_questions or 0, count)
            drawn = count * phase.harvest.num_samples + controlled * 20
            return START_S + self._sampled(drawn, WRITTEN, 0) + count * SEARCH_S
        count = phase.eval.num_questions or 300
        policies = trained if phase.eval.after is None else len(phase.eval.after)
        fixed = sum(self._sampled(count, DIRECT, WRITTEN + PASSAGE * k) for k in phase.eval.fixed_k)
        return START_S + policies * self._sampled(count, WRITTEN, SHOWN) + fixed

    def work(self, phase: PhaseConfig, data: Any, model: Any) -> Workload:
        """Returns what an iteration of a training phase does."""
        rl = phase.kind == "rl"
        return Workload(
            questions=int(data.get("batch_size", 8 if rl else 16)),
            group_size=int(model.get("group_size", 8)) if rl else 1,
            prompt=PROMPT,
            written=WRITTEN,
            shown=SHOWN,
            rows=self.rows,
            samples=rl,
            different=SHARED if rl and self.settings.packed else 1.0,
        )

    def peak(self, works: Sequence[Workload]) -> float:
        """Returns the bytes that a process holds at most over training phases that do this work."""
        needed = [max(peaks(memory(self.shape, self.settings, work)).values()) for work in works]
        return FRAGMENTED * max(needed, default=4.0 * self.shape.parameters)

    def _spent(self, work: Workload) -> float:
        return sum(part.amount for part in seconds(self.shape, self.settings, work, self.flops))

    def _sampled(self, questions: int, written: int, shown: int) -> float:
        if not questions:
            return 0.0
        return self._spent(
            Workload(questions=questions, prompt=PROMPT, written=written, shown=shown, rows=self.rows, kept=0.0)
        )


def describe_plan(schedule: Schedule, phases: Sequence[PhaseConfig], names: Sequence[str]) -> str:
    """Returns the lines that open a run: minutes a phase, memory, disk."""
    from rpl.estimate.shapes import peak_flops, shape_of
    from rpl.modules.batches.micro_batches import token_budget

    mixed = schedule.dtype == "bfloat16"
    shape = shape_of(schedule.policy)
    settings = Settings(
        mixed=mixed,
        packed=schedule.model.get("packing", "shared") == "shared",
        tokens_per_micro_batch=token_budget(schedule.model.get("tokens_per_micro_batch"), "cpu"),
    )
    costs = Costs(shape, settings, peak_flops(mixed), schedule.rollout.batch_size)
    trained = sum(phase.kind in ("rl", "sft") for phase in phases)
    minutes, works = [], []
    for phase in phases:
        data, model, trainer = (
            {**getattr(schedule, part), **getattr(phase, part)} for part in ("data", "model", "trainer")
        )
        minutes.append(costs.phase(phase, data, model, trainer, trained) / 60)
        if phase.kind in ("rl", "sft"):
            works.append(costs.work(phase, data, model))
    steps = ", ".join(f"{name} {m:.0f}" for name, m in zip(names, minutes, strict=True))
    disk = shape.parameters * (4 * trained + 24)
    return (
        f"{len(phases)} phases in {schedule.run.path}; "
        f"policy {schedule.policy}, {shape.parameters / 1e6:.0f} M parameters\n"
        f"rpl: estimate: {sum(minutes):.0f} min ({steps}), {costs.peak(works) / GIB:.1f} GiB of memory, "
        f"{disk / GIB:.1f} GiB of disk"
    )
