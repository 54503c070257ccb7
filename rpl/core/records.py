"""The records that flow through RPL: frozen, plain, JSON-ready.

`to_dict` and `from_dict` turn any of them into JSON objects and back without loss, so that every line of
`rollouts.jsonl` and `repairs.jsonl` can be replayed.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """One question with what is needed to score it. Only the verifier and the scorer read answers and gold ids."""

    id: str
    question: str
    answers: tuple[str, ...]
    """All accepted answer strings; never empty."""
    gold_docs: tuple[str, ...] = ()
    """Ids of the passages that are needed to answer; empty means "no gold known"."""
    dataset: str = ""
    split: str = ""
    type: str = ""
    """The kind of question, as the data set names it."""
    hops: int = 0
    """Number of passages that must be joined; 0 means unknown."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A unit of retrieval. `score` and `rank` (from 0) belong to the list it came in."""

    id: str
    title: str
    text: str
    score: float = 0.0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class TraceError:
    """What went wrong in a program: data, not an exception."""

    kind: str
    """`syntax`, `forbidden`, `runtime`, `primitive`, `budget_*`, `timeout` or `worker_died`."""
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class PrimitiveCall:
    """One call of a search primitive."""

    name: str
    args: dict[str, Any]
    """JSON values; passages appear as their ids."""
    result_ids: tuple[str, ...]
    line: int | None = None
    seconds: float = 0.0
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything one execution of one program did. Equal programs give equal traces, apart from the seconds."""

    source: str
    observation: str
    """What the policy gets to see: the printed text within its token budget, and the error if there was one."""
    printed_ids: tuple[str, ...] = ()
    """Ids of the passages that are in `observation`, in print order, without repeats."""
    printed_tokens: int = 0
    """Length of `observation` in tokens of the policy's tokenizer."""
    omitted: int = 0
    """How many printed items did not fit in the token budget."""
    calls: tuple[PrimitiveCall, ...] = ()
    error: TraceError | None = None
    infra_error: str | None = None
    """Set when retrieval or the sandbox itself failed: the rollout is void and nothing may be learnt from it."""
    fuel: int = 0
    """Loop steps and calls that were used."""
    seconds: float = 0.0

    @property
    def fetched_ids(self) -> tuple[str, ...]:
        """Ids of all passages that any primitive returned, in order of first appearance."""
        return tuple(dict.fromkeys(i for call in self.calls for i in call.result_ids))


FinishReason = Literal["stop", "eos", "length"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy wrote in one turn, and what the environment answered."""

    completion_ids: tuple[int, ...]
    """The sampled token ids, exactly; these are the ids that are trained."""
    logprobs: tuple[float, ...]
    """Log-probability of each sampled token under the distribution it was drawn from."""
    text: str
    finish_reason: FinishReason
    program: str | None = None
    trace: Trace | None = None
    observation_ids: tuple[int, ...] = ()
    """Token ids of the rendered `<result>` block that follows the completion; empty after the last turn."""
    answer: str | None = None
    invalid: str | None = None
    """Why this turn ended the rollout without an answer (`forgery`, `truncated`, `no_action`, …)."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at one question: a prompt and a transcript that only ever grew at its end."""

    question_id: str
    group_id: str
    """Names the group of rollouts whose rewards are compared; unique per question instance and iteration."""
    sample_index: int
    seed: int
    prompt_ids: tuple[int, ...]
    turns: tuple[Turn, ...]
    answer: str | None = None
    invalid: str | None = None
    """Why there is no answer: `forgery`, `truncated`, `context`, `no_action`, `turn_budget`, `repeated_failure`; `None`
    when answered."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt, completions and observations, in order."""
        ids = list(self.prompt_ids)
        for turn in self.turns:
            ids += turn.completion_ids
            ids += turn.observation_ids
        return tuple(ids)

    @property
    def completion_mask(self) -> tuple[bool, ...]:
        """True where the policy wrote the token; aligned with `token_ids`. Prompt and observations are False."""
        mask = [False] * len(self.prompt_ids)
        for turn in self.turns:
            mask += [True] * len(turn.completion_ids)
            mask += [False] * len(turn.observation_ids)
        return tuple(mask)

    @property
    def sampler_logprobs(self) -> tuple[float, ...]:
        """Sampling log-probabilities aligned with `token_ids`; 0.0 where `completion_mask` is False."""
        values = [0.0] * len(self.prompt_ids)
        for turn in self.turns:
            values += turn.logprobs
            values += [0.0] * len(turn.observation_ids)
        return tuple(values)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The traces of all programs that ran."""
        return tuple(turn.trace for turn in self.turns if turn.trace is not None)

    @property
    def infra_error(self) -> str | None:
        """The first infrastructure error, or `None`. A rollout that has one is void."""
        return next((t.infra_error for t in self.traces if t.infra_error is not None), None)

    @property
    def printed_ids(self) -> tuple[str, ...]:
        """Ids of all passages that reached the context, in order of first appearance."""
        return tuple(dict.fromkeys(i for trace in self.traces for i in trace.printed_ids))

    @property
    def printed_tokens(self) -> int:
        """Observation tokens over all turns."""
        return sum(trace.printed_tokens for trace in self.traces)

    @property
    def num_calls(self) -> int:
        """Primitive calls over all turns."""
        return sum(len(trace.calls) for trace in self.traces)


@dataclass(frozen=True, slots=True)
class Control:
    """What fresh samples of the policy made of a failed program's question, with the executions of its repair."""

    child: str | None
    """Canonical text of the first verified sample; `None` where the budget ran out."""
    executions: int
    """Executions used; never more than the repair used."""
    draws: int
    """Samples drawn, repeats included."""
    first_verified: int | None
    """Index of the draw that was verified, from 0."""
    coverage: float
    """Highest share of gold in the context over all samples, in [0, 1]."""
    uncached_calls: int
    """Distinct retrieval calls, as `Repair.uncached_calls` counts them."""
    tokens: int
    """Tokens sampled, up to the verified draw."""

    @property
    def repaired(self) -> bool:
        """Whether a sample was verified."""
        return self.child is not None


@dataclass(frozen=True, slots=True)
class Benefit:
    """What a fixed answerer made of one observation."""

    em: float
    """Exact match of the greedy answer, 0 or 1."""
    gold_logprob: float
    """Mean log-probability a token of the first gold answer and its closing tag, in nats, rounded to 1e-4."""
    answer: str


@dataclass(frozen=True, slots=True)
class Benefits:
    """The same answerer on what each arm printed for one question."""

    repaired: Benefit
    resampled: Benefit
    """The control's best sample; the failed program where it drew none."""
    original: Benefit
    """The failed program."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Wide evidence that holds all gold: something to read, never a program to imitate."""

    program: str
    observation: str


@dataclass(frozen=True, slots=True)
class Repair:
    """A failed program, the nearby program that was verified to print the gold evidence, and what it cost."""

    question_id: str
    parent: str
    """Canonical text of the program that failed (or of the seed program)."""
    child: str | None
    """Canonical text of the verified repair; `None` when the budget ran out."""
    operators: tuple[str, ...] = ()
    edits: tuple[str, ...] = ()
    """One readable line per edit, in order of application."""
    edit_distance: int = 0
    executions: int = 0
    """Program executions that were spent on this question, the final verification included."""
    uncached_calls: int = 0
    """Distinct retrieval calls of these executions."""
    unwritable: int = 0
    """Neighbours that were left out because no transcript can hold them."""
    verdict: str = ""
    """`repaired`, `already_verified`, `solved` (verified, but not kept), `budget`, `exhausted`, `no_gold`, or
    `gold_missing` (the corpus lacks gold passages of the question, and nothing was run)."""
    failure: str = ""
    """Where the parent lost it: `crashed`, `never_fetched`, `lost_in_rerank`, `not_printed`, `over_budget`, `none`."""
    trace: Trace | None = None
    """Trace of the child."""
    seed: int = 0
    model: str = ""
    """The policy whose program failed."""
    type: str = ""
    """The question's kind."""
    dataset: str = ""
    """The question's data set."""
    from_seed_program: bool = False
    """Whether the parent was the seed program, because nothing that the policy wrote parsed."""
    control: Control | None = None
    """The resample control, where it ran."""
    benefit: Benefits | None = None
    """What the answerer made of each arm's evidence, where it was measured."""
    reading: Reading | None = None
    """What the reading program printed, where that holds all gold."""

    @staticmethod
    def upgraded(data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the fields of a record as they stand today: older files have some of them under `extra`."""
        if "extra" not in data:
            return data
        fields = {**data, **data["extra"]}
        del fields["extra"]
        if "control" in fields:
            fields["control"] = {key: value for key, value in fields["control"].items() if key != "repaired"}
        return fields

    @property
    def attempted(self) -> bool:
        """Whether the parent was a failure that was searched; the other verdicts leave nothing to repair."""
        return self.verdict in ("repaired", "budget", "exhausted")


def to_dict(record: Any) -> Any:
    """Turns a record into JSON-ready values (tuples become lists).

    Args:
        record: A dataclass instance of this module, or any JSON value that may hold such instances.

    >>> to_dict(Passage("p1", "Lyon", "A city."))
    {'id': 'p1', 'title': 'Lyon', 'text': 'A city.', 'score': 0.0, 'rank': 0}
    """
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: to_dict(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {key: to_dict(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_dict(value) for value in record]
    return record


def from_dict(cls: type[T], data: Mapping[str, Any]) -> T:
    """Builds a record from the JSON object that `to_dict` made of it.

    Args:
        cls: The record class.
        data: Its fields; fields with a default may be missing.

    Raises:
        KeyError: A field without a default is missing.
        TypeError: There is a field that the record does not have.

    >>> from_dict(Passage, to_dict(Passage("p1", "Lyon", "A city."))).title
    'Lyon'
    """
    hints = typing.get_type_hints(cls)
    data = getattr(cls, "upgraded", lambda same: same)(data)
    unknown = set(data) - set(hints)
    if unknown:
        raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(map(repr, unknown)))}")
    values: dict[str, Any] = {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        if f.name in data:
            values[f.name] = _revive(hints[f.name], data[f.name])
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise KeyError(f.name)
    return cls(**values)


def _revive(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return tuple(_revive(args[0], item) for item in value)
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in args if arg is not type(None)]
        return _revive(inner[0], value)
    return value
