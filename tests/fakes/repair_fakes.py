"""Stand-ins for the executor, the policy and the corpus: scripted, counted, and as nasty as a test wants them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from helpers_rollouts import InstantSession

from rpl.core.records import Passage, PrimitiveCall, Question, Trace, TraceError
from rpl.executors.base import Executor, TokenCounter
from rpl.policy.renderer import Action
from rpl.sampling.sampler import Completion, Sampler, SamplerSession

SEED = "for p in bm25(question, k=1):\n    print(p)"

PASSAGES = {
    "city": Passage("city", "Lyon", "A city in France."),
    "land": Passage("land", "France", "A country. Capital: Paris. Currency: Euro."),
    "other": Passage("other", "Borders of Chad", "The neighbouring countries are Libya and Niger."),
}


def lookup(id_: str) -> Passage:
    return PASSAGES[id_]


def a_question(**changes: Any) -> Question:
    fields: dict[str, Any] = {
        "id": "q1",
        "question": "What is the currency of the country where Lyon lies?",
        "answers": ("Euro",),
        "gold_docs": ("city", "land"),
        "split": "train",
        "type": "two_hop",
    }
    return Question(**{**fields, **changes})


def a_trace(source: str = SEED, printed: Sequence[str] = (), **changes: Any) -> Trace:
    """A trace whose one call fetched `fetched` (by default what was printed)."""
    fetched = changes.pop("fetched", printed)
    query = changes.pop("query", "a query")
    fields: dict[str, Any] = {
        "source": source,
        "observation": " ".join(printed),
        "printed_ids": tuple(printed),
        "printed_tokens": 10 * len(printed),
        "calls": (PrimitiveCall("bm25", {"query": query, "k": 1}, tuple(fetched)),),
    }
    return Trace(**{**fields, **changes})


class ScriptedExecutor(Executor):
    """Runs programs by asking a function; counts jobs and never forgets one."""

    def __init__(self, script: Callable[[str], Trace]) -> None:
        self.script = script
        self.jobs: list[str] = []
        self.batches: list[int] = []

    def connect(self, count_tokens: TokenCounter) -> None: ...

    def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[Trace]:
        self.jobs += [source for source, _ in jobs]
        self.batches.append(len(jobs))
        return [self.script(source) for source, _ in jobs]

    def close(self) -> None: ...


def printing(*rules: tuple[str, Sequence[str]]) -> Callable[[str], Trace]:
    """A script: a program prints the passages of every rule whose text it contains."""

    def script(source: str) -> Trace:
        printed = dict.fromkeys(id_ for text, ids in rules if text in source for id_ in ids)
        return a_trace(source, tuple(printed))

    return script


def by_hash(source: str, salt: str, success: int) -> Trace:
    """An outcome that nothing explains: errors, partial coverage, full coverage, all over the place."""
    draw = hashlib.sha256(f"{salt}|{source}".encode()).digest()
    printed = [id_ for bit, id_ in enumerate(PASSAGES) if draw[0] >> bit & 1]
    if draw[1] % 100 < success:
        printed = ["city", "land"]
    error = TraceError("runtime", "boom") if draw[2] % 4 == 0 else None
    return a_trace(source, printed, fetched=tuple(PASSAGES) if draw[3] % 2 else printed, error=error)


class TextRenderer:
    """The part of a renderer that drafts need; a prompt is the question's characters."""

    def prompt_ids(self, question: str) -> list[int]:
        return [ord(c) for c in question]

    def parse(self, text: str, finish_reason: str = "eos") -> Action:
        match = re.search(r"<program>(.*?)</program>", text, re.DOTALL)
        return Action("program", match.group(1).strip()) if match else Action("invalid", reason="no_action")


class ScriptedSampler(Sampler):
    """Draws what a function of prompt text and seed says; remembers the seeds."""

    def __init__(self, write: Callable[[str, int], str]) -> None:
        self.write = write
        self.seeds: list[int] = []

    def connect(self, model: Any, tokenizer: Any) -> None: ...

    def open(self) -> SamplerSession:
        return _Session(self)


class _Session(InstantSession):
    def __init__(self, sampler: ScriptedSampler) -> None:
        super().__init__()
        self.sampler = sampler

    def add(self, prompt: Sequence[int], seed: int) -> int:
        self.sampler.seeds.append(seed)
        return super().add(prompt, seed)

    def write(self, row: int) -> Completion:
        text = self.sampler.write("".join(map(chr, self.tokens[row])), self.seeds[row])
        return Completion((1, 2, 3), (0.0, 0.0, 0.0), text, "stop")
