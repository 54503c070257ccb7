"""Stand-ins of the evaluation tests: questions, a corpus of a few lines, a scripted sampler and executor, a system."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from helpers_rollouts import InstantSession

from rpl.agents.system import System
from rpl.core.files import digest
from rpl.core.records import PrimitiveCall, Question, Rollout, Trace, TraceError, Turn
from rpl.executors.base import Executor, TokenCounter
from rpl.retrieval.library.counting import CallCounts
from rpl.sampling.sampler import Completion, Sampler, SamplerSession, SamplingParams

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Chile": "Santiago", "Kenya": "Nairobi"}


def questions(n: int = 10, gold: bool = True) -> list[Question]:
    """Asks for capitals, in turns; every third is of another type; data sets alternate."""
    names = list(CAPITALS)
    return [
        Question(
            id=f"q{i}",
            question=f"What is the capital of {names[i % len(names)]}? ({i})",
            answers=(CAPITALS[names[i % len(names)]],),
            gold_docs=(f"p{i}",) if gold else (),
            dataset="odd" if i % 2 else "even",
            type="two_hop" if i % 3 == 0 else "one_hop",
        )
        for i in range(n)
    ]


class FakeSystem(System):
    """Answers right where `right` says so; its seconds are not fixed, everything else is."""

    def __init__(
        self,
        right: Callable[[int], bool] = lambda i: i % 2 == 0,
        *,
        name: str = "fake",
        tokens: int = 40,
        settings: dict[str, Any] | None = None,
        fail_on: str | None = None,
        calls_each: int = 0,
    ) -> None:
        self.name, self.settings, self.calls_each = name, settings or {"k": 3}, calls_each
        self.identity = {"weights": digest(*(str(right(i)) for i in range(100))), "tokens": tokens}
        self.right, self.tokens, self.fail_on = right, tokens, fail_on
        self.batches: list[list[str]] = []

    @property
    def retrieval(self) -> CallCounts:
        return CallCounts(ok=sum(map(len, self.batches)) * self.calls_each, failed=len(self.batches) * self.calls_each)

    def answer(self, questions: Sequence[Question]) -> list[Rollout]:
        self.batches.append([question.id for question in questions])
        return [self._one(question) for question in questions]

    def _one(self, question: Question) -> Rollout:
        number = int(question.id[1:])
        infra = "index server gone" if question.id == self.fail_on else None
        error = TraceError("runtime", "boom", 1) if number % 5 == 4 else None
        trace = Trace(
            "print(1)",
            "seen",
            printed_ids=(f"p{number}", "x") if number % 4 else (),
            printed_tokens=self.tokens,
            calls=(PrimitiveCall("bm25", {"query": "a"}, ("x",)),),
            error=error,
            infra_error=infra,
        )
        # the answer depends on the batch it was computed in: resuming must not change batches
        answer = question.answers[0] if self.right(number) else f"wrong in a batch of {len(self.batches[-1])}"
        turns = (
            Turn((1, 2), (-0.1, -0.2), "<program>", "stop", "print(1)", trace, (3,)),
            Turn((4,), (-0.1,), "<answer>", "stop", answer=answer),
        )
        return Rollout(question.id, "g", 0, 0, (0,), turns, answer=answer)


class ScriptedSampler(Sampler):
    """Writes what a function makes of the transcript's text so far.

    Keeps the prompts of each session in `opened`, and in `flights` how many rows were decoded in each `advance`.
    """

    def __init__(self, tokenizer: Any, script: Callable[[str], str]) -> None:
        self.tokenizer, self.script = tokenizer, script
        self.opened: list[list[str]] = []
        self.flights: list[int] = []
        self.params: list[SamplingParams] = []

    def connect(self, model: Any, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def open(self) -> SamplerSession:
        self.opened.append([])
        return _Session(self)


class _Session(InstantSession):
    def __init__(self, sampler: ScriptedSampler) -> None:
        super().__init__()
        self.sampler = sampler

    def add(self, prompt: Sequence[int], seed: int) -> int:
        self.sampler.opened[-1].append(self.sampler.tokenizer.decode(list(prompt)))
        return super().add(prompt, seed)

    def advance(self) -> list[tuple[int, Completion]]:
        if self.params:
            self.sampler.flights.append(len(self.params))
        return super().advance()

    def write(self, row: int) -> Completion:
        self.sampler.params.append(self.params[row])
        text = self.sampler.script(self.sampler.tokenizer.decode(self.tokens[row]))
        ids = self.sampler.tokenizer.encode(text, add_special_tokens=False)
        return Completion(tuple(ids), (-0.5,) * len(ids), text, "stop")


class FakeExecutor(Executor):
    """Prints `[id] Capital: text` for the question's country, `k` times as the source says."""

    def __init__(self, fail_on: str | None = None) -> None:
        self.fail_on = fail_on
        self.sources: list[str] = []

    def connect(self, count_tokens: TokenCounter) -> None:
        self.count = count_tokens

    def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[Trace]:
        return [self._one(source, question) for source, question in jobs]

    def _one(self, source: str, question: str) -> Trace:
        self.sources.append(source)
        if self.fail_on is not None and self.fail_on in question:
            return Trace(source, "", infra_error="index server gone")
        found = re.search(r"\((\d+)\)", question)
        number = found.group(1) if found else "0"
        country = next(name for name in CAPITALS if name in question)
        observation = f"[p{number}] {country}: The capital is {CAPITALS[country]}."
        call = PrimitiveCall("bm25", {"query": question, "k": 1}, (f"p{number}",))
        return Trace(source, observation, (f"p{number}",), len(observation), calls=(call,))

    def close(self) -> None:
        pass
