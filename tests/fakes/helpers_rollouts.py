"""A sampler that writes from a script, and an executor that prints from a table."""

from rpl.core.records import Passage, PrimitiveCall, Question, Trace, TraceError
from rpl.executors.base import Executor
from rpl.sampling.sampler import Completion, Sampler, SamplerSession


def question(text="Where is Lyon?", id="q1", answers=("France",)):
    return Question(id=id, question=text, answers=answers, gold_docs=("p1",))


class InstantSession(SamplerSession):
    """Keeps transcripts and finishes every completion that was asked for in one `advance`.

    `write(row)` says what is drawn, a `Completion`, from `tokens[row]`, `seeds[row]`, `turns[row]` (completions so far)
    and `params[row]`. Everything that a real session refuses is refused.
    """

    def __init__(self):
        self.tokens, self.seeds, self.turns, self.params = [], [], [], {}
        self.gone = set()

    def write(self, row):
        raise NotImplementedError

    def add(self, prompt, seed):
        assert prompt
        self.tokens.append(list(prompt))
        self.seeds.append(seed)
        self.turns.append(0)
        return len(self.tokens) - 1

    def append(self, row, token_ids):
        assert row not in self.params
        assert row not in self.gone
        self.tokens[row] += token_ids

    def submit(self, row, params):
        assert row not in self.params
        assert row not in self.gone
        self.params[row] = params

    def advance(self):
        done = []
        for row in sorted(self.params):
            completion = self.write(row)
            self.tokens[row] += completion.token_ids
            self.turns[row] += 1
            done.append((row, completion))
        self.params.clear()
        return done

    def drop(self, row):
        assert row not in self.gone
        self.gone.add(row)
        self.params.pop(row, None)

    def close(self):
        pass


class ScriptedSampler(Sampler):
    """Writes what `script(seed, turn)` says: a text, or a pair of text and finish reason.

    Keeps every transcript in `transcripts[seed]`, as the model would have seen it, and in `flights` how many rows were
    decoded in each `advance`.
    """

    def __init__(self, script, tokenizer=None):
        self.script = script
        self.tokenizer = tokenizer
        self.transcripts = {}
        self.flights = []

    def connect(self, model, tokenizer):
        self.tokenizer = tokenizer

    def open(self):
        return _ScriptedSession(self)


class _ScriptedSession(InstantSession):
    def __init__(self, sampler):
        super().__init__()
        self.sampler = sampler

    def add(self, prompt, seed):
        row = super().add(prompt, seed)
        self.sampler.transcripts[seed] = self.tokens[row]
        return row

    def advance(self):
        if self.params:
            self.sampler.flights.append(len(self.params))
        return super().advance()

    def write(self, row):
        said = self.sampler.script(self.seeds[row], self.turns[row])
        text, reason = said if isinstance(said, tuple) else (said, "stop")
        ids = self.sampler.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        if reason == "eos":
            ids.append(self.sampler.tokenizer.eos_token_id)
        return Completion(tuple(ids), (-1.0,) * len(ids), text, reason)


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
