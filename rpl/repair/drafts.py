"""Samples programs from the policy, one turn each: for failures to repair, and for the control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rpl.core.records import Question
from rpl.programs.grammar import Program, parse_or_none
from rpl.sampling.opening import OpenedPolicy
from rpl.sampling.sampler import SamplingParams
from rpl.sampling.single_turn import complete


@dataclass(frozen=True, slots=True)
class Draft:
    """What one completion of the policy amounts to."""

    program: Program | None
    """`None` where the completion held no program, or none that parses."""
    tokens: int
    """Sampled tokens."""


def draw_drafts(
    requests: Sequence[tuple[Question, int]],
    policy: OpenedPolicy,
    params: SamplingParams,
    batch_size: int,
) -> list[Draft]:
    """Samples one completion a request.

    Args:
        requests: Question and seed of each draw; a draw depends on nothing else.
        policy: Whose programs they are.
        params: Length and temperature.
        batch_size: Most draws in flight.
    """
    prompts = [policy.renderer.prompt_ids(question.question) for question, _ in requests]
    seeds = [seed for _, seed in requests]
    drafts: list[Draft] = []
    for completion in complete(policy.sampler, prompts, seeds, params, batch_size):
        action = policy.renderer.parse(completion.text, completion.finish_reason)
        program = parse_or_none(action.text) if action.kind == "program" else None
        drafts.append(Draft(program, len(completion.token_ids)))
    return drafts
