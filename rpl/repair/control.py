"""The resample control: the budget of a repair, spent on fresh samples of the same policy instead of on mutants.

Same questions, same verifier, same de-duplication, same number of executions. Whatever the repair finds beyond this
is owed to mutation and not to trying again. A sample that is no program, or does not parse, uses up an execution, as
it uses up a try; a repeated program is free, as it is in the search, but draws are bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rpl.core.errors import ConfigError
from rpl.core.records import Control, Question, Trace
from rpl.core.seeds import derive_seed
from rpl.executors.base import Executor
from rpl.mutation.budget import Budget
from rpl.mutation.verify import GoldVerifier
from rpl.programs.grammar import Program
from rpl.repair.drafts import Draft, draw_drafts
from rpl.sampling.opening import OpenedPolicy
from rpl.sampling.sampler import SamplingParams


@dataclass(frozen=True)
class ControlConfig:
    """How the control samples."""

    temperature: float = 1.0
    """Softmax temperature of the fresh samples."""
    max_new_tokens: int = 96
    """Most tokens of one sample."""
    batch_size: int = 32
    """Samples that are drawn together, over all questions."""
    max_draws_factor: int = 2
    """Most draws a question, as a multiple of its executions; bounds the cost of repeated programs."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ConfigError(f"control.temperature must be positive, got {self.temperature}")
        for name in ("max_new_tokens", "batch_size", "max_draws_factor"):
            if getattr(self, name) < 1:
                raise ConfigError(f"control.{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class ControlTask:
    """A failed program, and what its repair has cost."""

    question: Question
    parent: Program
    """Not executed again where it is drawn again."""
    executions: int
    """The budget: as many as the repair used."""


def resample(
    tasks: Sequence[ControlTask],
    *,
    policy: OpenedPolicy,
    executor: Executor,
    verifier: GoldVerifier,
    config: ControlConfig,
    max_printed_tokens: int,
    seed: int,
) -> list[tuple[Control, Trace | None]]:
    """Runs the control for several tasks at once.

    Args:
        tasks: One a question.
        policy: The one that the failures were harvested from.
        executor: As for the repair.
        verifier: As for the repair.
        config: How to sample.
        max_printed_tokens: The context budget, as for the repair.
        seed: Draw `i` of a question depends on `seed`, the question's id and `i`, not on the batch.

    Returns:
        For each task, in order, what came of it, and the trace of the verified sample, else that of the sample with
        the highest coverage, else `None`.

    Raises:
        RetrieverError: Retrieval failed during any execution.
    """
    arms = [_Arm(task, verifier, config, max_printed_tokens) for task in tasks]
    params = SamplingParams(max_new_tokens=config.max_new_tokens, temperature=config.temperature)
    while running := [arm for arm in arms if arm.wanted]:
        each = max(1, config.batch_size // len(running))
        owners = [arm for arm in running for _ in range(min(each, arm.wanted))]
        requests = []
        for arm in owners:
            question = arm.task.question
            requests.append((question, derive_seed(seed, "control", question.id, arm.asked)))
            arm.asked += 1
        drafts = draw_drafts(requests, policy, params, config.batch_size)
        traces = _run_new(owners, drafts, executor)
        for arm, draft in zip(owners, drafts, strict=True):
            arm.take(draft, traces)
    return [arm.result() for arm in arms]


Traces = dict[tuple[str, str], Trace]
"""(Program text, question text) -> its trace."""


def _run_new(owners: Sequence[_Arm], drafts: Sequence[Draft], executor: Executor) -> Traces:
    jobs = dict.fromkeys(
        (draft.program.source, arm.task.question.question)
        for arm, draft in zip(owners, drafts, strict=True)
        if draft.program is not None and draft.program.source not in arm.tried
    )
    return dict(zip(jobs, executor.run_many(list(jobs)), strict=True)) if jobs else {}


class _Arm:
    """The control of one question in the making."""

    def __init__(self, task: ControlTask, verifier: GoldVerifier, config: ControlConfig, max_printed_tokens: int):
        self.task = task
        self.asked = 0
        self.tried = {task.parent.source}
        self._verifier, self._max_printed_tokens = verifier, max_printed_tokens
        self._budget = Budget(task.executions)
        self._max_draws = config.max_draws_factor * task.executions
        self._draws = self._tokens = 0
        self._verified: int | None = None
        self._best: tuple[float, Trace] | None = None

    @property
    def wanted(self) -> int:
        """How many more draws may be needed."""
        if self._verified is not None:
            return 0
        return max(0, min(self._budget.left, self._max_draws - self._draws))

    def take(self, draft: Draft, traces: Traces) -> None:
        """Counts one draw; what was drawn beyond the success or the budget is ignored."""
        if not self.wanted:
            return
        self._draws += 1
        self._tokens += draft.tokens
        if draft.program is None:
            self._budget.waste()
            return
        if draft.program.source in self.tried:
            return
        self.tried.add(draft.program.source)
        trace = traces[draft.program.source, self.task.question.question]
        self._budget.spend(trace)
        verdict = self._verifier.verify(self.task.question, trace, self._max_printed_tokens)
        if verdict.ok:
            self._verified = self._draws - 1
        if verdict.ok or self._best is None or verdict.coverage > self._best[0]:
            self._best = (verdict.coverage, trace)

    def result(self) -> tuple[Control, Trace | None]:
        coverage, trace = self._best or (0.0, None)
        control = Control(
            child=trace.source if trace is not None and self._verified is not None else None,
            executions=self._budget.executions,
            draws=self._draws,
            first_verified=self._verified,
            coverage=coverage,
            uncached_calls=self._budget.uncached_calls,
            tokens=self._tokens,
        )
        return control, trace
