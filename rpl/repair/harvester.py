"""The work of a harvest on one chunk of questions: drafts, search, control, benefit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rpl.core.errors import ConfigError
from rpl.core.records import Question, Repair, Trace
from rpl.core.seeds import derive_seed
from rpl.environment.environment import Environment
from rpl.mutation.budget import Budget, timeless
from rpl.mutation.localise import localise
from rpl.mutation.search import repair
from rpl.mutation.verify import GoldVerifier
from rpl.policy.renderer import Renderer
from rpl.programs.grammar import Program, parse
from rpl.programs.primitives import SERVED
from rpl.repair.benefit import Answerer, Benefit, Evidence
from rpl.repair.config import HarvestConfig
from rpl.repair.control import ControlResult, ControlTask, resample
from rpl.repair.drafts import draw_drafts
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
        written: Programs by question id that are used instead of new samples.
    """

    def __init__(
        self,
        renderer: Renderer,
        sampler: Sampler,
        model: Any,
        environment: Environment,
        config: HarvestConfig,
        model_name: str,
        written: dict[str, list[Program]] | None,
    ) -> None:
        self._renderer, self._sampler, self._config = renderer, sampler, config
        self._executor, library = environment.executor, environment.library
        self._without = set(SERVED) - set(library.primitives)
        self._verifier = GoldVerifier(library.passage)
        self._model_name, self._written = model_name, written
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
            extra = {**records[i].extra, "control": _control_fields(control)}
            if benefit:
                extra["benefit"] = benefit
            records[i] = replace(records[i], extra=extra)
        return records

    def _starts(self, questions: Sequence[Question]) -> list[_Start]:
        programs = self._drawn(questions) if self._written is None else [self._written[q.id] for q in questions]
        jobs = [(program.source, q.question) for q, own in zip(questions, programs, strict=True) for program in own]
        traces = iter(self._executor.run_many(jobs) if jobs else [])
        return [
            self._start(q, [(program, next(traces)) for program in own])
            for q, own in zip(questions, programs, strict=True)
        ]

    def _drawn(self, questions: Sequence[Question]) -> list[list[Program]]:
        count = self._config.num_samples
        requests = [
            (q, derive_seed(self._config.seed, "harvest", q.id, index)) for q in questions for index in range(count)
        ]
        drafts = draw_drafts(
            requests,
            renderer=self._renderer,
            sampler=self._sampler,
            params=SamplingParams(self._config.max_new_tokens, self._config.temperature),
            batch_size=self._config.batch_size,
        )
        groups = (drafts[i * count : (i + 1) * count] for i in range(len(questions)))
        return [list(dict.fromkeys(d.program for d in group if d.program is not None)) for group in groups]

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
        extra: dict[str, Any] = {"type": question.type, "dataset": question.dataset}
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
                extra=extra,
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
        extra["from_seed_program"] = start.parent_trace is None
        return replace(found, model=self._model_name, extra=extra)

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
            reading = {"program": source, "observation": trace.observation}
            added.append(replace(record, extra={**record.extra, "reading": reading}) if fits else record)
        return added

    def _controls(self, starts: Sequence[_Start], records: Sequence[Repair]) -> list[ControlResult]:
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
        self, starts: Sequence[_Start], records: Sequence[Repair], controls: Sequence[ControlResult]
    ) -> list[dict[str, Any]]:
        """Returns, for each question that was repaired, what the answerer made of the evidence of each arm."""
        if self._answerer is None:
            return [{} for _ in starts]
        parents = self._parent_traces(starts)
        evidence: list[Evidence] = []
        owners: list[tuple[int, str]] = []
        for i, (start, record, control, parent) in enumerate(zip(starts, records, controls, parents, strict=True)):
            if record.trace is None:
                continue
            # A control that drew no program at all has nothing better to show than what it was to replace.
            resampled = control.trace or parent
            for arm, trace in (("repaired", record.trace), ("resampled", resampled), ("original", parent)):
                evidence.append(Evidence(start.question, trace.observation))
                owners.append((i, arm))
        readings: list[dict[str, Any]] = [{} for _ in starts]
        for (i, arm), reading in zip(owners, self._answerer.read(evidence), strict=True):
            readings[i][arm] = _reading_fields(reading)
        return readings

    def _parent_traces(self, starts: Sequence[_Start]) -> list[Trace]:
        jobs = [(start.parent.source, start.question.question) for start in starts if start.parent_trace is None]
        fresh = iter(self._executor.run_many(jobs) if jobs else [])
        traces = [start.parent_trace or next(fresh) for start in starts]
        for trace in traces:
            Budget(1).spend(trace)
        return traces


def _control_fields(control: ControlResult) -> dict[str, Any]:
    return {
        "repaired": control.child is not None,
        "child": control.child,
        "executions": control.executions,
        "draws": control.draws,
        "first_verified": control.first_verified,
        "coverage": control.coverage,
        "uncached_calls": control.uncached_calls,
        "tokens": control.tokens,
    }


def _reading_fields(reading: Benefit) -> dict[str, Any]:
    return {"em": reading.em, "gold_logprob": reading.gold_logprob, "answer": reading.answer}
