"""The systems that can be evaluated, behind one interface: the policy, and what it has to beat.

All of them answer with the same sampler, renderer and executor, greedily, and give ordinary rollouts, so that cost
and evidence are measured alike. Left out: loops of other papers (IRCoT, Search-o1), which need prompts of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from rpl.agents.system import System
from rpl.core.errors import ConfigError
from rpl.core.records import Question, Rollout, Trace, Turn
from rpl.core.seeds import derive_seed
from rpl.executors.base import Executor
from rpl.policy.renderer import Renderer
from rpl.programs.grammar import canonical
from rpl.retrieval.base import MAX_K
from rpl.retrieval.library.counting import CallCounts
from rpl.rollouts.loop import run_rollouts
from rpl.rollouts.requests import RolloutConfig, RolloutRequest
from rpl.sampling.sampler import Completion, Sampler, SamplingParams
from rpl.sampling.single_turn import complete

Search = Literal["bm25", "dense", "fuse"]

_FUSED_POOL = 10  # passages that each list brings into a fusion: fusing two lists of one passage ranks nothing


def fixed_source(k: int, search: Search = "bm25") -> str:
    """Returns the fixed program that a trained policy has to beat: print the k best passages for the question.

    Args:
        k: Passages to print, in [1, MAX_K].
        search: `bm25`, `dense`, or `fuse` (reciprocal-rank fusion of both).

    Raises:
        ConfigError: `k` or `search` is out of range.

    >>> print(fixed_source(3))
    for p in bm25(question, k=3):
        print(p)
    """
    if not 1 <= k <= MAX_K:
        raise ConfigError(f"k must be between 1 and {MAX_K}, got {k}")
    if search not in get_args(Search):
        raise ConfigError(f"search must be one of {', '.join(get_args(Search))}, got {search!r}")
    call = f"{search}(question, k={k})"
    if search == "fuse":
        pool = max(k, _FUSED_POOL)
        call = f"fuse(bm25(question, k={pool}), dense(question, k={pool}), k={k})"
    return f"for p in {call}:\n    print(p)"


def evaluation_requests(questions: Sequence[Question], seed: int) -> list[RolloutRequest]:
    """Returns one rollout to be made a question; Lightning's validation and `evaluate` make the same ones."""
    return [
        RolloutRequest(question, f"eval/{i}/{question.id}", 0, derive_seed(seed, "eval", question.id))
        for i, question in enumerate(questions)
    ]


class Policy(System):
    """The policy as it is trained: it writes programs, reads what they printed, and answers.

    Args:
        renderer: The transcript layout that the policy was trained with.
        sampler: Connected to the policy's weights.
        executor: Runs the programs.
        config: Turn and token budgets; the temperature is set to 0.
        name: How tables call it.
        seed: Stands in the rollouts; greedy sampling does not use it.
        identity: See `System.identity`.
    """

    def __init__(
        self,
        renderer: Renderer,
        sampler: Sampler,
        executor: Executor,
        config: RolloutConfig,
        name: str = "policy",
        seed: int = 0,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.identity = name, identity
        self.settings = {
            **_layout(renderer),
            "max_turns": config.max_turns,
            "max_new_tokens": config.max_new_tokens,
            "max_context_tokens": config.max_context_tokens,
        }
        self._renderer, self._sampler, self._executor = renderer, sampler, executor
        self._config, self._seed = replace(config, temperature=0.0), seed

    @property
    def retrieval(self) -> CallCounts:
        """See `System.retrieval`."""
        return self._executor.counts

    def answer(self, questions: Sequence[Question]) -> list[Rollout]:
        """Runs the multi-turn loop."""
        return run_rollouts(
            evaluation_requests(questions, self._seed),
            renderer=self._renderer,
            sampler=self._sampler,
            executor=self._executor,
            config=self._config,
        )


class Direct(System):
    """Answers from memory: no program, no passages. What retrieval is worth is the gain over this row.

    Args:
        renderer: Its `direct_prompt_ids` ask for a short answer and open the answer tag.
        sampler: Connected to the base model's weights, usually before any training.
        max_answer_tokens: Longest answer.
        batch_size: Questions at a time.
        name: How tables call it.
        identity: See `System.identity`.
    """

    def __init__(
        self,
        renderer: Renderer,
        sampler: Sampler,
        max_answer_tokens: int = 32,
        batch_size: int = 16,
        name: str = "direct",
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.identity = name, identity
        self.settings = {**_layout(renderer), "max_answer_tokens": max_answer_tokens}
        self._renderer, self._sampler = renderer, sampler
        self._params = SamplingParams(max_new_tokens=max_answer_tokens, temperature=0.0)
        self._batch = batch_size

    def answer(self, questions: Sequence[Question]) -> list[Rollout]:
        """Completes the direct prompts."""
        prompts = [tuple(self._renderer.direct_prompt_ids(q.question)) for q in questions]
        completions = _sample(self._sampler, prompts, self._params, self._batch)
        return [
            _rollout(question, prompt, (_forced_turn(self._renderer, completion),))
            for question, prompt, completion in zip(questions, prompts, completions, strict=True)
        ]


class FixedProgram(System):
    """Retrieves with one given program for all questions; the same weights read its result and answer.

    The transcript looks exactly as if the policy had written the program, but its tokens count as the environment's.
    Weights that ask for another search instead of answering are asked again with the answer tag already open, so that
    the baseline loses for a lack of evidence only, never for a habit that training gave to the weights.

    Args:
        renderer: The transcript layout that the policy was trained with.
        sampler: Connected to the weights that answer.
        executor: Runs the program, within the same limits as the policy's.
        k: Passages to print; see `fixed_source`.
        search: See `fixed_source`.
        source: Any other program in place of `k` and `search`.
        max_new_tokens: Longest turn.
        batch_size: Questions at a time.
        name: How tables call it; by default `fixed bm25 k=3` or, for a given program, `fixed program`.
        identity: See `System.identity`.

    Raises:
        ConfigError: Both or neither of `k` and `source` are given.
        ProgramError: `source` is not in the program language.
    """

    def __init__(
        self,
        renderer: Renderer,
        sampler: Sampler,
        executor: Executor,
        *,
        k: int | None = None,
        search: Search = "bm25",
        source: str | None = None,
        max_new_tokens: int = 128,
        batch_size: int = 16,
        name: str | None = None,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        if (k is None) == (source is None):
            raise ConfigError(f"a fixed program needs either k or source, got k={k!r} and source={source!r}")
        self.source = canonical(source if source is not None else fixed_source(k or 0, search))
        default = "fixed program" if source is not None else f"fixed {search} k={k}"
        self.name, self.identity = default if name is None else name, identity
        self.settings = {
            **_layout(renderer),
            "k": k,
            "search": search if source is None else None,
            "program": self.source,
            "max_new_tokens": max_new_tokens,
        }
        self._renderer, self._sampler, self._executor = renderer, sampler, executor
        self._params = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0)
        self._batch = batch_size

    @property
    def retrieval(self) -> CallCounts:
        """See `System.retrieval`."""
        return self._executor.counts

    def answer(self, questions: Sequence[Question]) -> list[Rollout]:
        """Runs the program for every question and completes the transcripts."""
        traces = self._executor.run_many([(self.source, question.question) for question in questions])
        cause = self._executor.verify()
        if cause is not None:
            traces = [replace(trace, infra_error=trace.infra_error or cause) for trace in traces]
        prompts = [tuple(self._renderer.prompt_ids(question.question)) for question in questions]
        filled = [self._filled(q, trace, answer=False) for q, trace in zip(questions, traces, strict=True)]
        endings: dict[int, tuple[tuple[int, ...], Turn]] = {}
        healthy = [i for i, trace in enumerate(traces) if trace.infra_error is None]
        for i, completion in zip(healthy, self._sample([filled[i] for i in healthy]), strict=True):
            action = self._renderer.parse(completion.text, completion.finish_reason)
            if action.kind == "answer":
                endings[i] = (filled[i], _turn(completion, action.text, None))
        silent = [i for i in healthy if i not in endings]
        forced = [self._filled(questions[i], traces[i], answer=True) for i in silent]
        for i, ids, completion in zip(silent, forced, self._sample(forced), strict=True):
            endings[i] = (ids, _forced_turn(self._renderer, completion))
        rollouts = []
        for i, (question, prompt, trace) in enumerate(zip(questions, prompts, traces, strict=True)):
            ids, ending = endings.get(i, (filled[i], None))
            program = Turn((), (), "", "stop", self.source, trace, observation_ids=ids[len(prompt) :])
            rollouts.append(_rollout(question, prompt, (program,) if ending is None else (program, ending)))
        return rollouts

    def _filled(self, question: Question, trace: Trace, answer: bool) -> tuple[int, ...]:
        return tuple(self._renderer.prefilled_ids(question.question, self.source, trace.observation, answer=answer))

    def _sample(self, prompts: Sequence[Sequence[int]]) -> list[Completion]:
        return _sample(self._sampler, prompts, self._params, self._batch)


def _layout(renderer: Renderer) -> dict[str, Any]:
    return {"style": renderer.style, "layout": renderer.style_hash}


def _group(question: Question) -> str:
    return f"eval/{question.id}"


def _sample(sampler: Sampler, prompts: Sequence[Sequence[int]], params: SamplingParams, batch: int) -> list[Completion]:
    return complete(sampler, prompts, [0] * len(prompts), params, batch)


def _turn(completion: Completion, answer: str | None, invalid: str | None) -> Turn:
    return Turn(
        completion.token_ids,
        completion.logprobs,
        completion.text,
        completion.finish_reason,
        answer=answer,
        invalid=invalid,
    )


def _forced_turn(renderer: Renderer, completion: Completion) -> Turn:
    answer = renderer.direct_answer(completion.text)
    return _turn(completion, answer or None, None if answer else "no_action")


def _rollout(question: Question, prompt: tuple[int, ...], turns: tuple[Turn, ...]) -> Rollout:
    last = turns[-1]
    return Rollout(question.id, _group(question), 0, 0, prompt, turns, answer=last.answer, invalid=last.invalid)
