"""The multi-turn loop: the policy writes, programs run, observations come back, until an answer or the turn budget.

Rollouts advance on their own: while the programs of some run in the background, others are decoded, and a rollout that
is over gives its place to the next request. A failed program is shown to the policy and the rollout goes on. Failed
retrieval ends the rollout and makes it void (`Rollout.infra_error`); who calls the loop decides with `VoidRate`
whether the run may go on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rpl.core.records import Rollout, Trace, Turn
from rpl.executors.base import Executor
from rpl.policy.limits import check_context
from rpl.policy.renderer import Action, Renderer
from rpl.rollouts.background import BackgroundPrograms, Job
from rpl.rollouts.failures import failure
from rpl.rollouts.requests import RolloutConfig, RolloutRequest, RolloutTiming
from rpl.sampling.sampler import Completion, Sampler, SamplerSession, SamplingParams

Progress = Callable[[int], None]
"""Told the number of rollouts that were just finished."""


def run_rollouts(
    requests: Sequence[RolloutRequest],
    *,
    renderer: Renderer,
    sampler: Sampler,
    executor: Executor,
    config: RolloutConfig,
    progress: Progress | None = None,
    timing: RolloutTiming | None = None,
) -> list[Rollout]:
    """Makes rollouts.

    Equal inputs give equal rollouts, however long anything takes: programs that were completed in one step of the
    sampler run during its next step and are waited for right after it, and each different program of a question is run
    once (a run that infrastructure failed does not count). Rollouts that asked retrieval while it could not be trusted
    (`Executor.verify`) are made once more.

    Args:
        requests: What to roll out; those with equal prompts are started one after the other.
        renderer: Renders prompts and observations and reads completions.
        sampler: Connected to the policy.
        executor: Connected to the renderer's `count_tokens`. It is called from another thread, one call at a time.
        config: Budgets and temperature.
        progress: Called as rollouts finish.
        timing: Is added to.

    Returns:
        One rollout a request, in order. Void ones are among them.

    Raises:
        ConfigError: `config.max_context_tokens` is more than the policy reads.
        BaseException: Whatever sampler or executor raise, as it is; no thread is left behind.
    """
    check_context(config.max_context_tokens, sampler.max_positions, "the policy")
    timing = RolloutTiming() if timing is None else timing

    def make(wanted: Sequence[RolloutRequest]) -> list[Rollout]:
        return _make(wanted, renderer, sampler, executor, config, progress or (lambda _: None), timing)

    rollouts = make(requests)
    if (cause := executor.verify()) is None:
        return rollouts
    # What these rollouts read may be wrong. Retrieval works again by now, and their requests name the same noise.
    numbers = [number for number, rollout in enumerate(rollouts) if _asked_retrieval(rollout)]
    again = make([requests[number] for number in numbers])
    cause = executor.verify()
    for number, rollout in zip(numbers, again, strict=True):
        rollouts[number] = rollout if cause is None else _distrusted(rollout, cause)
    return rollouts


def _make(
    requests: Sequence[RolloutRequest],
    renderer: Renderer,
    sampler: Sampler,
    executor: Executor,
    config: RolloutConfig,
    progress: Progress,
    timing: RolloutTiming,
) -> list[Rollout]:
    rows = [_Row(index, request, renderer) for index, request in enumerate(requests)]
    start = time.perf_counter()
    # Programs count tokens in their thread while observations are rendered in this one. A fast tokenizer allows that
    # unless an option of it changes meanwhile; this sets the option that both use.
    renderer.count_tokens("")
    with sampler.open() as session, BackgroundPrograms(executor) as programs:
        try:
            _Loop(rows, renderer, session, programs, config, progress, timing).run()
        finally:
            timing.prefilled_tokens += session.prefilled_tokens
            timing.execute_s += programs.seconds
            timing.wall_s += time.perf_counter() - start
    return [row.rollout() for row in rows]


class _Row:
    """A rollout in the making."""

    def __init__(self, index: int, request: RolloutRequest, renderer: Renderer) -> None:
        self.index = index
        self.request = request
        self.prompt = request.prompt_ids or tuple(renderer.prompt_ids(request.question.question))
        self.length = len(self.prompt)
        self.turns: list[Turn] = []
        self.answer: str | None = None
        self.invalid: str | None = None

    def rollout(self) -> Rollout:
        request = self.request
        return Rollout(
            question_id=request.question.id,
            group_id=request.group_id,
            sample_index=request.sample_index,
            seed=request.seed,
            prompt_ids=self.prompt,
            turns=tuple(self.turns),
            answer=self.answer,
            invalid=self.invalid,
        )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A completion whose program is running."""

    number: int
    """The row of the session."""
    completion: Completion
    program: str

    def turn(self, trace: Trace, observation: Sequence[int] = (), invalid: str | None = None) -> Turn:
        c = self.completion
        return Turn(
            completion_ids=c.token_ids,
            logprobs=c.logprobs,
            text=c.text,
            finish_reason=c.finish_reason,
            program=self.program,
            trace=trace,
            observation_ids=tuple(observation),
            invalid=invalid,
        )


class _Loop:
    """Drives a session and the programs of its rows."""

    def __init__(
        self,
        rows: Sequence[_Row],
        renderer: Renderer,
        session: SamplerSession,
        programs: BackgroundPrograms,
        config: RolloutConfig,
        progress: Progress,
        timing: RolloutTiming,
    ) -> None:
        self.renderer, self.session, self.programs = renderer, session, programs
        self.config, self.progress, self.timing = config, progress, timing
        self.params = SamplingParams(max_new_tokens=config.max_new_tokens, temperature=config.temperature)
        self.room = config.max_context_tokens - config.max_new_tokens
        self.queue = deque(_together(rows))
        self.in_flight: dict[int, _Row] = {}  # by row of the session

    def run(self) -> None:
        running: list[_Waiting] = []
        self._admit()
        while self.in_flight:
            completions = self._advance()
            # In this order, so that what is started next holds all that is known by now.
            if running:
                self._observe(running, self._traces())
            running = [waiting for number, done in completions if (waiting := self._read(number, done)) is not None]
            if running:
                self.programs.start([self._job(waiting) for waiting in running])
            self._admit()

    def _admit(self) -> None:
        while self.queue and len(self.in_flight) < self.config.batch_size:
            row = self.queue.popleft()
            if row.length > self.room:
                row.invalid = "context"
                self.progress(1)
                continue
            number = self.session.add(row.prompt, row.request.seed)
            self.session.submit(number, self.params)
            self.in_flight[number] = row
            self.timing.prompt_tokens += row.length

    def _advance(self) -> list[tuple[int, Completion]]:
        start = time.perf_counter()
        try:
            return self.session.advance()
        finally:
            self.timing.generate_s += time.perf_counter() - start

    def _traces(self) -> list[Trace]:
        start = time.perf_counter()
        try:
            return self.programs.wait()
        finally:
            self.timing.wait_s += time.perf_counter() - start

    def _job(self, waiting: _Waiting) -> Job:
        return waiting.program, self.in_flight[waiting.number].request.question.question

    def _read(self, number: int, completion: Completion) -> _Waiting | None:
        """Takes in a completion; returns it if it is a program to be run."""
        row = self.in_flight[number]
        row.length += len(completion.token_ids)
        self.timing.generated_tokens += len(completion.token_ids)
        action = self.renderer.parse(completion.text, completion.finish_reason)
        if action.kind == "program" and len(row.turns) == self.config.max_turns - 1:
            action = Action("invalid", action.text, "turn_budget")
        if action.kind == "program":
            return _Waiting(number, completion, action.text)
        row.turns.append(_last_turn(completion, action))
        self._end(number, action.text if action.kind == "answer" else None, action.reason)
        return None

    def _observe(self, running: Sequence[_Waiting], traces: Sequence[Trace]) -> None:
        """Takes in what programs printed, and lets their rollouts go on."""
        for waiting, trace in zip(running, traces, strict=True):
            row = self.in_flight[waiting.number]
            observation = self.renderer.observation_ids(trace.observation)
            if trace.infra_error is not None:
                row.turns.append(waiting.turn(trace))
                self._end(waiting.number)
            elif self._repeats(row, trace):
                row.turns.append(waiting.turn(trace, invalid="repeated_failure"))
                self._end(waiting.number, invalid="repeated_failure")
            elif row.length + len(observation) > self.room:
                row.turns.append(waiting.turn(trace, invalid="context"))
                self._end(waiting.number, invalid="context")
            else:
                row.turns.append(waiting.turn(trace, observation))
                row.length += len(observation)
                self.timing.observation_tokens += len(observation)
                self.session.append(waiting.number, observation)
                self.session.submit(waiting.number, self.params)

    def _repeats(self, row: _Row, trace: Trace) -> bool:
        """Whether a rollout has now run the same failing program as often as it may."""
        if self.config.max_equal_failures is None or trace.error is None:
            return False
        before = [failure(turn.trace) for turn in row.turns if turn.trace is not None]
        return before.count(failure(trace)) + 1 >= self.config.max_equal_failures

    def _end(self, number: int, answer: str | None = None, invalid: str | None = None) -> None:
        row = self.in_flight.pop(number)
        row.answer, row.invalid = answer, invalid
        self.session.drop(number)
        self.progress(1)


def _together(rows: Sequence[_Row]) -> list[_Row]:
    """Orders the rows so that those with equal prompts are next to each other: a prompt is then run once."""
    first: dict[tuple[int, ...], int] = {}
    for row in rows:
        first.setdefault(row.prompt, row.index)
    return sorted(rows, key=lambda row: first[row.prompt])


def _asked_retrieval(rollout: Rollout) -> bool:
    return any(trace.calls for trace in rollout.traces)


def _distrusted(rollout: Rollout, cause: str) -> Rollout:
    """Makes a rollout void that asked anything of retrieval."""
    turns = tuple(
        replace(turn, trace=replace(turn.trace, infra_error=turn.trace.infra_error or cause))
        if turn.trace is not None and turn.trace.calls
        else turn
        for turn in rollout.turns
    )
    return replace(rollout, turns=turns)


def _last_turn(completion: Completion, action: Action) -> Turn:
    return Turn(
        completion_ids=completion.token_ids,
        logprobs=completion.logprobs,
        text=completion.text,
        finish_reason=completion.finish_reason,
        program=action.text if action.reason == "turn_budget" else None,
        answer=action.text if action.kind == "answer" else None,
        invalid=action.reason,
    )
