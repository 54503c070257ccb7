"""Measures the benefit of repairs: one fixed answerer reads what different programs printed.

Evidence is worth only what it does to the answer, so a repair is judged by a *fixed* answerer (the policy that the
failures were harvested from, greedy) that sees each arm's observation under one and the same stand-in program and
token budget. Only raw values a question leave this file; intervals belong to the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rpl.core.answers import exact_match
from rpl.core.records import Benefit, Question
from rpl.policy.likelihood import mean_logprobs
from rpl.policy.renderer import Renderer
from rpl.sampling.opening import OpenedPolicy
from rpl.sampling.sampler import SamplingParams
from rpl.sampling.single_turn import complete


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one arm gave the answerer for one question."""

    question: Question
    observation: str


def read_evidence(
    evidence: Sequence[Evidence], policy: OpenedPolicy, program: str, max_new_tokens: int, batch_size: int
) -> list[Benefit]:
    """Answers each question from its observation, greedily, and scores its gold answer after the same transcript.

    Args:
        evidence: What is read.
        policy: The reader; its model is in evaluation mode.
        program: The stand-in program that every transcript shows, whichever program really ran.
        max_new_tokens: Longest answer.
        batch_size: Transcripts at a time.
    """
    renderer = policy.renderer
    # The answer is forced open: weights that would rather search again must still show what they can read.
    contexts = [
        renderer.prefilled_ids(item.question.question, program, item.observation, answer=True) for item in evidence
    ]
    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0)
    completions = complete(policy.sampler, contexts, [0] * len(contexts), params, batch_size)
    golds = [gold_ids(renderer, item.question) for item in evidence]
    scores = mean_logprobs(policy.model, list(zip(contexts, golds, strict=True)), batch_size)
    answers = [renderer.direct_answer(completion.text) for completion in completions]
    return [
        Benefit(exact_match(answer, item.question.answers), round(score, 4), answer)
        for item, answer, score in zip(evidence, answers, scores, strict=True)
    ]


def gold_ids(renderer: Renderer, question: Question) -> list[int]:
    """Returns a question's first answer as the policy would write it after the opening tag."""
    return renderer.encode(f"{question.answers[0]}</answer>")
