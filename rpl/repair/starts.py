"""Chooses the program that repair starts from: the best failed one for a question, recorded or sampled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from rpl.core.errors import DataError
from rpl.core.files import read_jsonl
from rpl.core.records import Question, Rollout, Trace, from_dict
from rpl.core.seeds import derive_seed
from rpl.environment.environment import Environment
from rpl.mutation.budget import Budget
from rpl.mutation.verify import GoldVerifier
from rpl.programs.grammar import Program, parse, parse_or_none
from rpl.repair.drafts import Draft, draw_drafts
from rpl.repair.harvest_config import HarvestConfig
from rpl.retrieval.library.library import Library
from rpl.sampling.opening import OpenedPolicy
from rpl.sampling.sampler import SamplingParams

MAX_ATTEMPTS = 16
"""The most programs of one question that are taken from recorded rollouts."""
_SIBLINGS = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """A program that the policy wrote for a question in a recorded rollout, in whichever turn."""

    program: Program | None
    """`None` where the language refuses it."""
    trace: Trace | None
    """Its execution, where the record has one of this very text that did not fail for reasons outside the program."""


def read_attempts(path: Path, question_ids: Iterable[str], phase: str | None = None) -> dict[str, list[Attempt]]:
    """Reads what a policy wrote in recorded rollouts, by question, without repeats.

    Programs start clean, so that those of later turns stand for themselves as those of first turns do.

    Args:
        path: One record a line: a rollout, or an object that holds one under `rollout` (as training runs write them).
        question_ids: Whose programs are wanted; other lines are skipped.
        phase: Name of the phase whose rollouts are wanted, by default of any.

    Returns:
        For each question at most `MAX_ATTEMPTS`, the newest, in the order of the file.

    Raises:
        DataError: The file is missing or a line is not a rollout.
    """
    found: dict[str, dict[str, Attempt]] = {id_: {} for id_ in question_ids}
    for number, record in read_jsonl(path):
        fields = record.get("rollout", record)
        try:
            if fields["question_id"] not in found or (phase is not None and record.get("phase") != phase):
                continue
            rollout = from_dict(Rollout, fields)
        except KeyError as error:
            raise DataError(f"{path}:{number}: not a rollout: field {error} is missing") from error
        except (TypeError, AttributeError) as error:
            raise DataError(f"{path}:{number}: not a rollout: {error}") from error
        attempts = found[rollout.question_id]
        for turn in rollout.turns:
            if turn.program is not None:
                program = parse_or_none(turn.program)
                text = turn.program if program is None else program.source
                # A trace counts lines as its text has them, so that of another spelling is of no use.
                usable = turn.trace is not None and turn.trace.source == text and turn.trace.infra_error is None
                attempts.pop(text, None)
                attempts[text] = Attempt(program, turn.trace if usable else None)
    return {id_: list(attempts.values())[-MAX_ATTEMPTS:] for id_, attempts in found.items()}


@dataclass(frozen=True)
class Start:
    """What the policy left to repair for one question."""

    question: Question
    parent: Program
    siblings: tuple[Program, ...]
    solved: Trace | None
    """Trace of a program that needs no repair."""
    parent_trace: Trace | None


def find_starts(
    questions: Sequence[Question],
    policy: OpenedPolicy,
    environment: Environment,
    verifier: GoldVerifier,
    config: HarvestConfig,
    recorded: Mapping[str, Sequence[Attempt]],
) -> list[Start]:
    """Chooses where repair starts.

    Args:
        questions: The questions.
        policy: Whose programs are repaired.
        environment: Connected to the policy's tokenizer.
        verifier: Judges what the policy wrote.
        config: How many programs a question, how they are drawn, and the context budget.
        recorded: What the policy wrote before, by question id; new samples are drawn where that is too little.

    Returns:
        One start a question, in order.
    """
    written = [_usable(recorded.get(question.id, ()), environment.library) for question in questions]
    drawn = _draw(questions, [len(attempts) for attempts in written], policy, config)
    known: list[dict[Program, Trace | None]] = []
    for attempts, drafts in zip(written, drawn, strict=True):
        programs = {a.program: a.trace for a in attempts if a.program is not None}
        known.append(dict.fromkeys((d.program for d in drafts if d.program is not None), None) | programs)
    jobs = [
        (program.source, question.question)
        for question, programs in zip(questions, known, strict=True)
        for program, trace in programs.items()
        if trace is None
    ]
    fresh = iter(environment.executor.run_many(jobs) if jobs else [])
    starts = []
    for question, programs in zip(questions, known, strict=True):
        runs = [(program, next(fresh) if trace is None else trace) for program, trace in programs.items()]
        starts.append(_best(question, runs, verifier, config))
    return starts


def _usable(attempts: Sequence[Attempt], library: Library) -> list[Attempt]:
    """Drops the traces that name passages which the library does not have: they are of another corpus."""
    ids = {id_ for attempt in attempts if attempt.trace is not None for id_ in attempt.trace.fetched_ids}
    absent = library.missing(ids) if ids else frozenset()
    return [
        attempt
        if attempt.trace is None or (absent is not None and absent.isdisjoint(attempt.trace.fetched_ids))
        else replace(attempt, trace=None)
        for attempt in attempts
    ]


def _draw(
    questions: Sequence[Question], written: Sequence[int], policy: OpenedPolicy, config: HarvestConfig
) -> list[list[Draft]]:
    """Draws as many samples of each question as are missing."""
    counts = [max(0, config.num_samples - count) for count in written]
    requests = [
        (question, derive_seed(config.seed, "harvest", question.id, index))
        for question, count in zip(questions, counts, strict=True)
        for index in range(count)
    ]
    params = SamplingParams(config.max_new_tokens, config.temperature)
    drafts = iter(draw_drafts(requests, policy, params, config.batch_size))
    return [list(islice(drafts, count)) for count in counts]


def _best(
    question: Question, runs: Sequence[tuple[Program, Trace]], verifier: GoldVerifier, config: HarvestConfig
) -> Start:
    judged = []
    for program, trace in runs:
        Budget(1).spend(trace)  # raises where the failure is not the program's
        verdict = verifier.verify(question, trace, config.repair.max_printed_tokens)
        judged.append((not verdict.ok, -verdict.coverage, trace.printed_tokens, program.size, program, trace))
    judged.sort(key=lambda item: (*item[:4], item[4].source))
    if not judged:
        return Start(question, parse(config.seed_program), (), None, None)
    unsolved, _, _, _, parent, trace = judged[0]
    siblings = tuple(item[4] for item in judged[1:] if item[1] < 0)[:_SIBLINGS]
    return Start(question, parent, siblings, None if unsolved else trace, trace)
