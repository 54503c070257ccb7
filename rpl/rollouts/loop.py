"""The multi-turn loop: the policy writes, programs run, observations come back, until an answer or the turn budget.

A failed program is shown to the policy and the rollout goes on. Failed retrieval ends the rollout and makes it void
(`Rollout.infra_error`); who calls the loop decides with `InfraGuard` whether the run may go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rpl.errors import ConfigError
from rpl.executors.base import Executor
from rpl.rollouts.renderer import Action, Renderer
from rpl.rollouts.sampler import Completion, Sampler, SamplingParams
from rpl.types import Question, Rollout, Trace, Turn

Progress = Callable[[int], None]
"""Told the number of rollouts that were just finished."""


@dataclass(frozen=True)
class RolloutConfig:
    """How rollouts are made."""

    max_turns: int = 3
    """Most completions in one rollout. The last one must be an answer."""
    max_new_tokens: int = 128
    """Most tokens in one completion."""
    temperature: float = 1.0
    """Softmax temperature; 0 means greedy. Training draws from the whole vocabulary."""
    batch_size: int = 64
    """Rollouts that are sampled together."""
    max_context_tokens: int = 2048
    """Longest transcript; a rollout with no room for another completion ends as invalid (`context`)."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_new_tokens", "batch_size", "max_context_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"rollouts.{name} must be at least 1, got {getattr(self, name)!r}")
        if not self.temperature >= 0:
            raise ConfigError(f"rollouts.temperature must be at least 0, got {self.temperature!r}")
        if self.max_context_tokens <= self.max_new_tokens:
            raise ConfigError(
                f"rollouts.max_context_tokens ({self.max_context_tokens}) must be larger than "
                f"rollouts.max_new_tokens ({self.max_new_tokens})"
            )


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One rollout to be made."""

    question: Question
    group_id: str
    """Names the group whose rewards are compared; unique per question instance and iteration."""
    sample_index: int
    seed: int
    """The sampled tokens are a function of the weights, the prompt and this seed."""
    prompt_ids: tuple[int, ...] | None = None
    """The ids to start from (`Renderer.prefilled_ids`, for baselines); `None` means the question's prompt."""


def run_rollouts(
    requests: Sequence[RolloutRequest],
    *,
    renderer: Renderer,
    sampler: Sampler,
    executor: Executor,
    config: RolloutConfig,
    progress: Progress | None = None,
) -> list[Rollout]:
    """Makes rollouts.

    Args:
        requests: What to roll out; requests with equal prompts are sampled together.
        renderer: Renders prompts and observations and reads completions.
        sampler: Connected to the policy.
        executor: Connected to the renderer's `count_tokens`.
        config: Budgets and temperature.
        progress: Called as rollouts finish.

    Returns:
        One rollout a request, in order. Void ones are among them.
    """
    rows = [_Row(index, request, renderer) for index, request in enumerate(requests)]
    for chunk in _chunks(rows, config.batch_size):
        _run_chunk(chunk, renderer, sampler, executor, config, progress)
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
        self.done = False

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

    def end(self, answer: str | None = None, invalid: str | None = None) -> None:
        self.answer, self.invalid, self.done = answer, invalid, True


def _chunks(rows: Sequence[_Row], size: int) -> Iterator[list[_Row]]:
    """Yields the rows in chunks, those with equal prompts next to each other: a prompt is then run once."""
    first: dict[tuple[int, ...], int] = {}
    for row in rows:
        first.setdefault(row.prompt, row.index)
    ordered = sorted(rows, key=lambda row: first[row.prompt])
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def _run_chunk(
    rows: list[_Row],
    renderer: Renderer,
    sampler: Sampler,
    executor: Executor,
    config: RolloutConfig,
    progress: Progress | None,
) -> None:
    params = SamplingParams(max_new_tokens=config.max_new_tokens, temperature=config.temperature)
    room = config.max_context_tokens - config.max_new_tokens
    for row in rows:
        if row.length > room:
            row.end(invalid="context")
    told = _tell(rows, 0, progress)
    with sampler.open([row.prompt for row in rows], [row.request.seed for row in rows]) as session:
        for turn in range(config.max_turns):
            active = [slot for slot, row in enumerate(rows) if not row.done]
            if not active:
                break
            completions = session.sample(active, params)
            waiting: list[_Waiting] = []
            for slot, completion in zip(active, completions, strict=True):
                row = rows[slot]
                row.length += len(completion.token_ids)
                action = renderer.parse(completion.text, completion.finish_reason)
                if action.kind == "program" and turn == config.max_turns - 1:
                    action = Action("invalid", action.text, "turn_budget")
                if action.kind == "program":
                    waiting.append(_Waiting(slot, completion, action.text))
                else:
                    row.turns.append(_last_turn(completion, action))
                    row.end(action.text if action.kind == "answer" else None, action.reason)
            traces = _execute(executor, [(w.program, rows[w.slot].request.question.question) for w in waiting])
            for w, trace in zip(waiting, traces, strict=True):
                row = rows[w.slot]
                observation = renderer.observation_ids(trace.observation)
                if trace.infra_error is not None:
                    row.turns.append(w.turn(trace))
                    row.end()
                elif row.length + len(observation) > room:
                    row.turns.append(w.turn(trace, invalid="context"))
                    row.end(invalid="context")
                else:
                    row.turns.append(w.turn(trace, observation))
                    row.length += len(observation)
                    session.append(w.slot, observation)
            told = _tell(rows, told, progress)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A completion whose program is running."""

    slot: int
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


def _execute(executor: Executor, jobs: list[tuple[str, str]]) -> list[Trace]:
    """Runs each different job once: equal programs give equal traces, and a group often writes the same one."""
    different = list(dict.fromkeys(jobs))
    if not different:
        return []
    traces = dict(zip(different, executor.run_many(different), strict=True))
    return [traces[job] for job in jobs]


def _tell(rows: Sequence[_Row], told: int, progress: Progress | None) -> int:
    done = sum(row.done for row in rows)
    if progress is not None and done > told:
        progress(done - told)
    return done
