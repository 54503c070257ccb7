"""Stand-ins for tests of the modules: scripted completions, an executor without sandbox, a loader with state."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from helpers_rollouts import InstantSession
from lightning.pytorch import LightningDataModule

from rpl.core.records import Question, Trace
from rpl.executors.base import Executor, TokenCounter
from rpl.sampling.sampler import Completion, Sampler, SamplerSession

PASSAGES = {"p1": "Lyon is in France.", "p2": "Oslo is in Norway.", "p3": "Rome is in Italy."}
QUESTIONS = [
    Question(f"q{i}", f"Which country is {city} in?", (country,), (f"p{i % 3 + 1}",), dataset="toy", hops=1)
    for i, (city, country) in enumerate([("Lyon", "France"), ("Oslo", "Norway"), ("Rome", "Italy")] * 4)
]


class FakeExecutor(Executor):
    """Prints the passages whose ids the program text names; `broken` makes every run an infrastructure fault."""

    def __init__(self, broken: bool = False) -> None:
        self.count: TokenCounter = len
        self.broken = broken

    def connect(self, count_tokens: TokenCounter) -> None:
        self.count = count_tokens

    def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[Trace]:
        if self.broken:
            return [Trace(source, "", infra_error="no index") for source, _ in jobs]
        traces = []
        for source, _ in jobs:
            ids = tuple(i for i in PASSAGES if i in source)
            text = "\n".join(f"[{i}] {PASSAGES[i]}" for i in ids)
            traces.append(Trace(source, text, printed_ids=ids, printed_tokens=self.count(text)))
        return traces

    def close(self) -> None:
        pass


class ScriptedSampler(Sampler):
    """Writes a program and then an answer, right or wrong by the row's seed; log-probabilities are made up."""

    def __init__(self, right: float = 0.5) -> None:
        self.right = right
        self.stubborn = False  # writes its program again in every turn
        self.tokenizer: Any = None

    def connect(self, model: Any, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def open(self) -> SamplerSession:
        return _ScriptedSession(self)


class _ScriptedSession(InstantSession):
    def __init__(self, sampler: ScriptedSampler) -> None:
        super().__init__()
        self.sampler = sampler

    def write(self, row: int) -> Completion:
        text = self.sampler.tokenizer.decode(self.tokens[row])
        index = next(i for i, city in enumerate(("Lyon", "Oslo", "Rome")) if city in text)
        good = random.Random(self.seeds[row]).random() < self.sampler.right
        country = ("France", "Norway", "Italy")[index] if good else "Peru"
        gold = index + 1 if good else (index + 1) % 3 + 1
        texts = [f"<program>\nprint(read('p{gold}'))\n</program>", f"<answer>{country}</answer>"]
        text = texts[0 if self.sampler.stubborn else self.turns[row]]
        ids = tuple(self.sampler.tokenizer.encode(text, add_special_tokens=False))
        return Completion(ids, tuple(-1.0 for _ in ids), text, "stop")


class ListLoader:
    """Batches of a list, in order, for any number of epochs' worth; resumes exactly and shards by rank."""

    def __init__(self, items: Sequence[Any], batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        step = batch_size * world_size
        self.batches = [list(items[s : s + step])[rank::world_size] for s in range(0, len(items), step)]
        self.done = 0
        self.start = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self):
        start, self.start = self.start, 0
        for index in range(start, len(self.batches)):
            self.done = index + 1
            yield self.batches[index]

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["done"] % len(self.batches)


class ListData(LightningDataModule):
    """Hands out loaders; records are left alone on their way to the module, as in RPL's own data modules."""

    def __init__(self, train: Any = None, evaluation: Any = None) -> None:
        super().__init__()
        self.train, self.evaluation = train, evaluation

    def train_dataloader(self) -> Any:
        return self.train

    def val_dataloader(self) -> Any:
        return self.evaluation

    test_dataloader = predict_dataloader = val_dataloader

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return batch
