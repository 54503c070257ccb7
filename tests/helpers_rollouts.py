"""A sampler that writes from a script, and an executor that prints from a table."""

from rpl.executors.base import Executor
from rpl.rollouts.sampler import Completion, Sampler, SamplerSession
from rpl.types import Passage, PrimitiveCall, Question, Trace, TraceError


def question(text="Where is Lyon?", id="q1", answers=("France",)):
    return Question(id=id, question=text, answers=answers, gold_docs=("p1",))


class ScriptedSampler(Sampler):
    """Writes what `script(seed, turn)` says: a text, or a pair of text and finish reason.

    Keeps every transcript in `transcripts[seed]`, as the model would have seen it.
    """

    def __init__(self, script, tokenizer=None):
        self.script = script
        self.tokenizer = tokenizer
        self.transcripts = {}
        self.batches = []

    def connect(self, model, tokenizer):
        self.tokenizer = tokenizer

    def open(self, prompts, seeds):
        self.batches.append(len(prompts))
        return _ScriptedSession(self, prompts, seeds)


class _ScriptedSession(SamplerSession):
    def __init__(self, sampler, prompts, seeds):
        self.sampler, self.seeds = sampler, list(seeds)
        self.turns = [0] * len(seeds)
        for prompt, seed in zip(prompts, seeds, strict=True):
            sampler.transcripts[seed] = list(prompt)

    def sample(self, rows, params):
        return [self._one(row) for row in rows]

    def _one(self, row):
        said = self.sampler.script(self.seeds[row], self.turns[row])
        self.turns[row] += 1
        text, reason = said if isinstance(said, tuple) else (said, "stop")
        ids = self.sampler.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        if reason == "eos":
            ids.append(self.sampler.tokenizer.eos_token_id)
        self.append(row, ids)
        return Completion(tuple(ids), (-1.0,) * len(ids), text, reason)

    def append(self, row, token_ids):
        self.sampler.transcripts[self.seeds[row]] += token_ids

    def close(self):
        pass


class TableExecutor(Executor):
    """Looks the observation up by source; `infra` sources fail as infrastructure does, unknown ones as programs do."""

    def __init__(self, table, infra=(), passages=()):
        self.table, self.infra, self.passages = table, infra, passages
        self.jobs = []
        self.count_tokens = len

    def connect(self, count_tokens):
        self.count_tokens = count_tokens

    def run_many(self, jobs):
        self.jobs += jobs
        return [self._one(source) for source, _ in jobs]

    def _one(self, source):
        if source in self.infra:
            return Trace(source=source, observation="", infra_error="server down")
        if source not in self.table:
            error = TraceError("runtime", "name 'x' is not defined", 1)
            return Trace(source=source, observation="error on line 1: name 'x' is not defined", error=error)
        text = self.table[source]
        call = PrimitiveCall("bm25", {"query": source, "k": 1}, ("p1",))
        return Trace(source, text, ("p1",), self.count_tokens(text), calls=(call,))

    def close(self):
        pass


def passage(id="p1", title="Lyon", text="Lyon is a city in France."):
    return Passage(id, title, text)
