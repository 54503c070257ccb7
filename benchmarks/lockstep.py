"""The lock-step way of making multi-turn rollouts, as TRL's tool loop does it with transformers' `generate`.

All unfinished rollouts are padded on the left and generated together, until the last of them has stopped; then their
programs run; then the whole transcripts are run through the model again to generate the next turn. In three points this
loop is kinder than TRL's own: a row stops at the closing tag and not only at an end token, programs run several at a
time with repeats taken out, and half-precision weights are cast once a turn and not once a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria

from rpl.core.records import FinishReason, Rollout, Turn
from rpl.executors.base import Executor
from rpl.policy.renderer import Renderer
from rpl.rollouts.requests import RolloutConfig, RolloutRequest
from rpl.sampling.stopping import StopDetector

STOPS = ("</program>", "</answer>")


@dataclass
class _Row:
    request: RolloutRequest
    prompt: list[int]
    turns: list[Turn] = field(default_factory=list)
    answer: str | None = None
    invalid: str | None = None
    done: bool = False

    @property
    def transcript(self) -> list[int]:
        return self.prompt + [i for t in self.turns for i in (*t.completion_ids, *t.observation_ids)]

    def rollout(self) -> Rollout:
        r = self.request
        turns, prompt = tuple(self.turns), tuple(self.prompt)
        return Rollout(r.question.id, r.group_id, r.sample_index, r.seed, prompt, turns, self.answer, self.invalid)


class LockStep:
    """Makes rollouts in lock step.

    Args:
        model: A transformers causal language model.
        renderer: Renders prompts and observations and reads completions; has the tokenizer.
        executor: Connected to the renderer's `count_tokens`.
        config: Budgets, temperature, and how many rollouts go together.
        bf16: Whether `generate` runs under bf16 autocast.
    """

    def __init__(self, model: Any, renderer: Renderer, executor: Executor, config: RolloutConfig, bf16: bool) -> None:
        self.model, self.renderer, self.executor, self.config, self.bf16 = model, renderer, executor, config, bf16

    def run(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Makes rollouts, `config.batch_size` at a time; one a request, in order."""
        rows = [_Row(r, self.renderer.prompt_ids(r.question.question)) for r in requests]
        for start in range(0, len(rows), self.config.batch_size):
            self._run_batch(rows[start : start + self.config.batch_size])
        return [row.rollout() for row in rows]

    def _run_batch(self, rows: list[_Row]) -> None:
        room = self.config.max_context_tokens - self.config.max_new_tokens
        for number in range(self.config.max_turns):
            for row in rows:
                if not row.done and len(row.transcript) > room:
                    row.done, row.invalid = True, "context"
            active = [row for row in rows if not row.done]
            if not active:
                return
            completions = self.generate([row.transcript for row in active])
            last = number == self.config.max_turns - 1
            waiting = []
            for row, (ids, reason) in zip(active, completions, strict=True):
                shown = ids[:-1] if reason == "eos" else ids
                text = self.renderer.tokenizer.decode(
                    shown, skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
                action = self.renderer.parse(text, reason)
                if action.kind == "program" and not last:
                    waiting.append((row, ids, text, reason, action.text))
                    continue
                if action.kind == "answer":
                    row.answer = action.text
                row.invalid = "turn_budget" if action.kind == "program" else action.reason
                row.done = True
                row.turns.append(Turn(tuple(ids), (0.0,) * len(ids), text, reason, answer=row.answer))
            jobs = [(program, row.request.question.question) for row, *_, program in waiting]
            different = list(dict.fromkeys(jobs))
            traces = dict(zip(different, self.executor.run_many(different), strict=True)) if different else {}
            for (row, ids, text, reason, program), job in zip(waiting, jobs, strict=True):
                trace = traces[job]
                seen = () if trace.infra_error else tuple(self.renderer.observation_ids(trace.observation))
                row.turns.append(Turn(tuple(ids), (0.0,) * len(ids), text, reason, program, trace, seen))
                row.done = trace.infra_error is not None

    def generate(self, transcripts: list[list[int]]) -> list[tuple[list[int], FinishReason]]:
        """Continues each transcript; returns the new ids and why they ended."""
        tokenizer, device = self.renderer.tokenizer, self.model.device
        width = max(map(len, transcripts))
        pad = tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(t)) + t for t in transcripts], device=device)
        mask = torch.tensor([[0] * (width - len(t)) + [1] * len(t) for t in transcripts], device=device)
        stop = _StopTexts(StopDetector(tokenizer, STOPS), tokenizer.eos_token_id, width, len(transcripts))
        sampling: dict[str, Any] = {"do_sample": False}
        if self.config.temperature > 0:
            sampling = {"do_sample": True, "temperature": self.config.temperature, "top_k": 0, "top_p": 1.0}
        with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bf16):
            output = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=self.config.max_new_tokens,
                stopping_criteria=[stop],
                pad_token_id=pad,
                eos_token_id=tokenizer.eos_token_id,
                use_cache=True,
                **sampling,
            )
        new = output[:, width:].tolist()
        return [stop.cut(index, row) for index, row in enumerate(new)]


class _StopTexts(StoppingCriteria):
    """Ends a row at its end token or with the token that completes a stop text; remembers where each row ended."""

    def __init__(self, detector: StopDetector, eos: int, width: int, rows: int) -> None:
        self.detector, self.eos, self.width = detector, eos, width
        self.ended: list[tuple[int, FinishReason] | None] = [None] * rows

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        for index, new in enumerate(input_ids[:, self.width :].tolist()):
            if self.ended[index] is None:
                if new[-1] == self.eos:
                    self.ended[index] = (len(new), "eos")
                elif self.detector.completed(new):
                    self.ended[index] = (len(new), "stop")
        return torch.tensor([end is not None for end in self.ended], device=input_ids.device)

    def cut(self, index: int, new: list[int]) -> tuple[list[int], FinishReason]:
        end = self.ended[index]
        return (new, "length") if end is None else (new[: end[0]], end[1])
