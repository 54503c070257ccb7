"""Does better evidence give better answers? The same answerer reads what different programs printed.

Evidence is worth only what it does to the answer, so a repair is judged by a *fixed* answerer (the policy that the
failures were harvested from, greedy) that sees each arm's observation under one and the same stand-in program and
token budget. Only raw values a question leave this file; intervals belong to the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rpl.core.answers import exact_match
from rpl.core.records import Benefit, Question
from rpl.sampling.opening import OpenedPolicy
from rpl.sampling.sampler import SamplingParams
from rpl.sampling.single_turn import complete


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one arm gave the answerer for one question."""

    question: Question
    observation: str


class Answerer:
    """A fixed reader of evidence.

    Args:
        policy: Who reads; its model is in evaluation mode.
        program: The stand-in program that every transcript shows, whichever program really ran.
        max_new_tokens: Longest answer.
        batch_size: Transcripts at a time.
    """

    def __init__(
        self,
        policy: OpenedPolicy,
        program: str,
        max_new_tokens: int,
        batch_size: int,
    ) -> None:
        self._policy, self._program, self._batch = policy, program, batch_size
        self._params = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0)

    def read(self, evidence: Sequence[Evidence]) -> list[Benefit]:
        """Answers each question from its observation, and scores its gold answer after the same transcript."""
        # The answer is forced open: weights that would rather search again must still show what they can read.
        contexts = [
            self._policy.renderer.prefilled_ids(item.question.question, self._program, item.observation, answer=True)
            for item in evidence
        ]
        answers = self._answers(contexts)
        golds = [self._gold_ids(item.question) for item in evidence]
        scores = mean_logprobs(self._policy.model, list(zip(contexts, golds, strict=True)), self._batch)
        return [
            Benefit(exact_match(answer, item.question.answers), round(score, 4), answer)
            for item, answer, score in zip(evidence, answers, scores, strict=True)
        ]

    def _gold_ids(self, question: Question) -> list[int]:
        return self._policy.renderer.encode(f"{question.answers[0]}</answer>")

    def _answers(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        completions = complete(self._policy.sampler, prompts, [0] * len(prompts), self._params, self._batch)
        return [self._policy.renderer.direct_answer(completion.text) for completion in completions]


def mean_logprobs(model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], batch_size: int) -> list[float]:
    """Scores continuations under a causal language model at temperature 1.

    Args:
        model: Called as `model(input_ids=…, attention_mask=…, position_ids=…)`; its output has `logits` `(B, T, V)`.
        pairs: Context and continuation token ids, neither empty.
        batch_size: Pairs at a time.

    Returns:
        The mean log-probability a continuation token of each pair, in nats.
    """
    import torch

    out: list[float] = []
    device = next(model.parameters()).device
    for start in range(0, len(pairs), batch_size):
        part = [(list(context), list(continuation)) for context, continuation in pairs[start : start + batch_size]]
        longest = max(len(context) + len(continuation) for context, continuation in part)
        ids = torch.zeros((len(part), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, (context, continuation) in enumerate(part):
            tokens = context + continuation
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        with torch.inference_mode():
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
            logits = model(
                input_ids=ids.to(device), attention_mask=mask.to(device), position_ids=positions.to(device)
            ).logits
            for row, (context, continuation) in enumerate(part):
                first, last = len(context) - 1, len(context) + len(continuation) - 1
                logprobs = torch.log_softmax(logits[row, first:last].float(), dim=-1)
                targets = torch.tensor(continuation, device=logprobs.device)
                out.append(float(logprobs.gather(1, targets[:, None]).mean()))
    return out
