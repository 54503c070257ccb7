"""Programs that the policy writes in one turn: where failures come from, and what the control spends its budget on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rpl.core.errors import DataError, ProgramError
from rpl.core.files import read_jsonl
from rpl.core.records import Question, Rollout, Trace, from_dict
from rpl.policy.renderer import Renderer
from rpl.programs.grammar import Program, parse
from rpl.sampling.sampler import Sampler, SamplingParams
from rpl.sampling.single_turn import complete

MAX_ATTEMPTS = 16
"""The most programs of one question that are taken from recorded rollouts."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What one completion of the policy amounts to."""

    program: Program | None
    """`None` where the completion held no program, or none that parses."""
    tokens: int
    """Sampled tokens."""


def draw_drafts(
    requests: Sequence[tuple[Question, int]],
    *,
    renderer: Renderer,
    sampler: Sampler,
    params: SamplingParams,
    batch_size: int,
    progress: Callable[[int], None] | None = None,
) -> list[Draft]:
    """Samples one completion a request.

    Args:
        requests: Question and seed of each draw; a draw depends on nothing else.
        renderer: Renders the prompt and reads the completion.
        sampler: Connected to the policy.
        params: Length and temperature.
        batch_size: Most draws in flight.
        progress: Told the number of draws that were just finished.
    """
    prompts = [renderer.prompt_ids(question.question) for question, _ in requests]
    seeds = [seed for _, seed in requests]
    drafts: list[Draft] = []
    for completion in complete(sampler, prompts, seeds, params, batch_size, progress):
        action = renderer.parse(completion.text, completion.finish_reason)
        program = parsed(action.text) if action.kind == "program" else None
        drafts.append(Draft(program, len(completion.token_ids)))
    return drafts


def parsed(source: str) -> Program | None:
    """Returns the program of a text, `None` if the language refuses it."""
    try:
        return parse(source)
    except ProgramError:
        return None


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
                program = parsed(turn.program)
                text = turn.program if program is None else program.source
                # A trace counts lines as its text has them, so that of another spelling is of no use.
                usable = turn.trace is not None and turn.trace.source == text and turn.trace.infra_error is None
                attempts.pop(text, None)
                attempts[text] = Attempt(program, turn.trace if usable else None)
    return {id_: list(attempts.values())[-MAX_ATTEMPTS:] for id_, attempts in found.items()}
