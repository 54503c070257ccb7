"""The work of a harvest on one chunk of questions: drafts, search, control, benefit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from rpl.core.errors import ConfigError
from rpl.core.records import Benefits, Control, Question, Reading, Repair, Trace
from rpl.core.seeds import derive_seed
from rpl.environment.environment import Environment
from rpl.mutation.budget import Budget, timeless
from rpl.mutation.localise import localise
from rpl.mutation.search import repair
from rpl.mutation.verify import GoldVerifier
from rpl.policy.renderer import Renderer
from rpl.programs.grammar import Program, parse
from rpl.programs.primitives import SERVED
from rpl.repair.benefit import Answerer, Evidence
from rpl.repair.config import HarvestConfig
from rpl.repair.control import ControlTask, resample
from rpl.repair.drafts import Attempt, Draft, draw_drafts
from rpl.sampling.sampler import Sampler, SamplingParams

_SIBLINGS = 2


@dataclass(frozen=True)
class _Start:
    """What the policy left to repair for one question."""

    question: Question
    parent: Program
    siblings: tuple[Program, ...]
    solved: Trace | None
    """Trace of a program that needs no repair."""
    parent_trace: Trace | None


class Harvester:
    """Turns questions into finished records; equal questions and settings give equal records.

    Args:
        renderer: The transcript layout of the policy.
        sampler: Connected to the policy.
        model: The policy, for log-likelihoods; may be `None` where `config.benefit` is off.
        environment: Connected to the renderer's tokenizer.
        config: What to do.
        model_name: Stands in the records.
        recorded: What the policy wrote before, by question id; new samples are drawn where that is too little.
    """

    def __init__(
        self,
        renderer: Renderer,
        sampler: Sampler,
        model: Any,
        environment: Environment,
        config: HarvestConfig,
        model_name: str,
        recorded: Mapping[str, Sequence[Attempt]],
    ) -> None:
        self._renderer, self._sampler, self._config = renderer, sampler, config
        self._executor, self._library = environment.executor, environment.library
        self._without = set(SERVED) - set(self._library.primitives)
        self._verifier = GoldVerifier(self._library.passage)
        self._model_name, self._recorded = model_name, recorded
        self._seed_program = parse(config.seed_program)
        limit = min(config.repair.max_printed_tokens, environment.config.limits.printed_tokens)
        self._repair = replace(config.repair, max_printed_tokens=limit)
        self._answerer: Answerer | None = None
        if config.benefit:
            if model is None:
                raise ConfigError("harvest.benefit needs the policy's model; give it, or set harvest.benefit to false")
            self._answerer = Answerer(
                renderer,
                sampler,
                model,
                config.seed_program,
                max_new_tokens=config.answer_tokens,
                batch_size=config.batch_size,
            )

    def run(self, questions: Sequence[Question], attempted: int) -> list[Repair]:
        """Returns the finished records of a chunk.

        Args:
            questions: The chunk.
            attempted: How many failed questions came before it.
        """
        starts = self._starts(questions)
        records = self._with_readings(questions, [self._record(start) for start in starts])
        limit = self._config.control_questions
        failed = [i for i, record in enumerate(records) if record.attempted]
        chosen = failed if limit is None else failed[: max(0, limit - attempted)]
        if not chosen:
            return records
        controls = self._controls([starts[i] for i in chosen], [records[i] for i in chosen])
        benefits = self._benefits([starts[i] for i in chosen], [records[i] for i in chosen], controls)
        for i, control, benefit in zip(chosen, controls, benefits, strict=True):
            records[i] = replace(records[i], control=control[0], benefit=benefit)
        return records

    def _starts(self, questions: Sequence[Question]) -> list[_Start]:
        recorded = [self._usable(self._recorded.get(question.id, ())) for question in questions]
        drawn = self._drawn(questions, [len(attempts) for attempts in recorded])
        starts = []
        known: list[dict[Program, Trace | None]] = []
        for attempts, drafts in zip(recorded, drawn, strict=True):
            programs = {a.program: a.trace for a in attempts if a.program is not None}
            known.append(dict.fromkeys((d.program for d in drafts if d.program is not None), None) | programs)
        jobs = [
            (program.source, question.question)
            for question, programs in zip(questions, known, strict=True)
            for program, trace in programs.items()
            if trace is None
        ]
        fresh = iter(self._executor.run_many(jobs) if jobs else [])
        for question, programs in zip(questions, known, strict=True):
            runs = [(program, next(fresh) if trace is None else trace) for program, trace in programs.items()]
            starts.append(self._start(question, runs))
        return starts

    def _usable(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Drops the traces that name passages which the library does not have: they are of another corpus."""
        ids = {id_ for attempt in attempts if attempt.trace is not None for id_ in attempt.trace.fetched_ids}
        absent = self._library.missing(ids) if ids else frozenset()
        return [
            attempt
            if attempt.trace is None or (absent is not None and absent.isdisjoint(attempt.trace.fetched_ids))
            else replace(attempt, trace=None)
            for attempt in attempts
        ]

    def _drawn(self, questions: Sequence[Question], written: Sequence[int]) -> list[list[Draft]]:
        """Draws as many samples of each question as are missing."""
        counts = [max(0, self._config.num_samples - count) for count in written]
        requests = [
            (question, derive_seed(self._config.seed, "harvest", question.id, index))
            for question, count in zip(questions, counts, strict=True)
            for index in range(count)
        ]
        drafts = iter(
            draw_drafts(
                requests,
                renderer=self._renderer,
                sampler=self._sampler,
                params=SamplingParams(self._config.max_new_tokens, self._config.temperature),
                batch_size=self._config.batch_size,
            )
        )
        return [list(islice(drafts, count)) for count in counts]

    def _start(self, question: Question, runs: Sequence[tuple[Program, Trace]]) -> _Start:
        judged = []
        for program, trace in runs:
            Budget(1).spend(trace)  # raises where the failure is not the program's
            verdict = self._verifier.verify(question, trace, self._repair.max_printed_tokens)
            judged.append((not verdict.ok, -verdict.coverage, trace.printed_tokens, program.size, program, trace))
        judged.sort(key=lambda item: (*item[:4], item[4].source))
        if not judged:
            return _Start(question, self._seed_program, (), None, None)
        unsolved, _, _, _, parent, trace = judged[0]
        siblings = tuple(item[4] for item in judged[1:] if item[1] < 0)[:_SIBLINGS]
        return _Start(question, parent, siblings, None if unsolved else trace, trace)

    def _record(self, start: _Start) -> Repair:
        question, seed = start.question, derive_seed(self._config.seed, "repair", start.question.id)
        if start.solved is not None:
            kept = self._config.keep_successes
            return Repair(
                question_id=question.id,
                parent=start.parent.source,
                child=start.parent.source if kept else None,
                verdict="already_verified" if kept else "solved",
                failure=localise(question, start.solved).kind,
                trace=timeless(start.solved) if kept else None,
                seed=seed,
                model=self._model_name,
                type=question.type,
                dataset=question.dataset,
            )
        found = repair(
            question,
            start.parent,
            self._executor,
            self._verifier,
            self._repair,
            start.siblings,
            seed,
            without=self._without,
        )
        return replace(
            found,
            model=self._model_name,
            type=question.type,
            dataset=question.dataset,
            from_seed_program=start.parent_trace is None,
        )

    def _with_readings(self, questions: Sequence[Question], records: list[Repair]) -> list[Repair]:
        """Adds the reading program's result to the records of questions whose gold it prints."""
        if self._config.reading_program is None:
            return records
        source = parse(self._config.reading_program).source
        traces = self._executor.run_many([(source, question.question) for question in questions])
        added = []
        for question, record, trace in zip(questions, records, traces, strict=True):
            Budget(1).spend(trace)
            fits = self._verifier.verify(question, trace, self._repair.max_printed_tokens).ok
            added.append(replace(record, reading=Reading(source, trace.observation)) if fits else record)
        return added

    def _controls(self, starts: Sequence[_Start], records: Sequence[Repair]) -> list[tuple[Control, Trace | None]]:
        tasks = [
            ControlTask(start.question, start.parent, record.executions)
            for start, record in zip(starts, records, strict=True)
        ]
        return resample(
            tasks,
            renderer=self._renderer,
            sampler=self._sampler,
            executor=self._executor,
            verifier=self._verifier,
            config=self._config.control,
            max_printed_tokens=self._repair.max_printed_tokens,
            seed=self._config.seed,
        )

    def _benefits(
        self, starts: Sequence[_Start], records: Sequence[Repair], controls: Sequence[tuple[Control, Trace | None]]
    ) -> list[Benefits | None]:
        """Returns, for each question that was repaired, what the answerer made of the evidence of each arm."""
        if self._answerer is None:
            return [None for _ in starts]
        parents = self._parent_traces(starts)
        evidence: list[Evidence] = []
        owners: list[int] = []
        for i, (start, record, (_, sample), parent) in enumerate(zip(starts, records, controls, parents, strict=True)):
            if record.trace is None:
                continue
            # A control that drew no program at all has nothing better to show than what it was to replace.
            evidence += [Evidence(start.question, t.observation) for t in (record.trace, sample or parent, parent)]
            owners.append(i)
        readings = iter(self._answerer.read(evidence))
        benefits = {i: Benefits(next(readings), next(readings), next(readings)) for i in owners}
        return [benefits.get(i) for i in range(len(starts))]

    def _parent_traces(self, starts: Sequence[_Start]) -> list[Trace]:
        jobs = [(start.parent.source, start.question.question) for start in starts if start.parent_trace is None]
        fresh = iter(self._executor.run_many(jobs) if jobs else [])
        traces = [start.parent_trace or next(fresh) for start in starts]
        for trace in traces:
            Budget(1).spend(trace)
        return traces
