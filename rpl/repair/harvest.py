"""The harvest: a policy's failed programs on training questions, their verified repairs, and the control beside them.

Chunk by chunk: where repair starts (`starts`), the search (`rpl.mutation`), the resample control (`control`), what both
are worth to an answerer (`benefit`), and one record a question into the file (`file`). Every draw depends on its
question alone, so a harvest that is stopped and started again writes the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rpl.core.contents import file_digest
from rpl.core.progress import progress_bar, say
from rpl.core.records import Benefits, Control, Question, Reading, Repair, Trace, to_dict
from rpl.core.seeds import derive_seed
from rpl.environment.environment import Environment
from rpl.environment.gold import check_gold
from rpl.mutation.budget import Budget, timeless
from rpl.mutation.localise import localise
from rpl.mutation.search import repair
from rpl.mutation.verify import GoldVerifier
from rpl.policy.bundle import check_primitives
from rpl.programs.grammar import parse
from rpl.programs.primitives import SERVED
from rpl.repair.benefit import Answerer, Evidence
from rpl.repair.config import SEED_PROGRAM, HarvestConfig
from rpl.repair.control import ControlTask, resample
from rpl.repair.file import RepairsFile
from rpl.repair.starts import Attempt, Start, Starts, read_attempts
from rpl.sampling.opening import OpenedPolicy

__all__ = ["SEED_PROGRAM", "HarvestConfig", "harvest"]


def harvest(
    questions: Sequence[Question],
    policy: OpenedPolicy,
    environment: Environment,
    config: HarvestConfig,
    out: Path,
    *,
    model_name: str | None = None,
    rollouts: Path | None = None,
    phase: str | None = None,
    enough: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Harvests verified repairs, or continues to.

    Args:
        questions: Train questions.
        policy: Whose failures are repaired. A file is continued only by an equal one.
        environment: Library and executor; connected to the policy's tokenizer here.
        config: What to do.
        out: The repairs file, one record a line in the order of the questions. Beside it are written the settings,
            `<stem>.settings.json`, and in the end the summary, `<stem>.summary.json`.
        model_name: What the records call the policy; by default its name.
        rollouts: Recorded rollouts of the policy. Their programs, with their traces, stand in for new samples, which
            are drawn only for questions that have fewer than `config.num_samples`.
        phase: Only rollouts of this phase of the run are used; by default all.
        enough: Asked before each chunk once the file holds any; where it says yes, the other questions are left out.

    Returns:
        The summary; see `summarise`.

    Raises:
        ConfigError: The library lacks a primitive that the policy was trained with.
        DataError: A question is not of the train split, an id repeats, `out` holds other questions or was begun
            with other settings, or the corpus has the gold of (nearly) no question.
        RetrieverError: Retrieval failed; what was finished before stands in the file, and the harvest can go on.
    """
    check_primitives(policy.contract, environment.library.primitives, policy.name)
    environment.connect(policy.renderer.count_tokens)
    model_name = model_name or policy.name
    settings = {**to_dict(config), "model": model_name, **environment.identity, **policy.identity}
    settings |= {"rollouts": None if rollouts is None else file_digest(rollouts), "phase": phase}
    file = RepairsFile(out, questions, settings)
    todo = questions[len(file.done) :]
    coverage = check_gold(questions, environment, "training questions to harvest")
    if not todo:
        return file.finish()
    recorded = {} if rollouts is None else read_attempts(rollouts, [question.id for question in todo], phase)
    worker = _Harvester(policy, environment, config, model_name, recorded)
    with progress_bar(len(questions), f"harvest {out.parent.name}", "q", initial=len(file.done)) as bar:
        for start in range(0, len(todo), config.chunk_size):
            if file.done and enough is not None and enough():
                say(f"harvest: {len(file.done)} of {len(questions)} questions were tried, to keep the budget")
                break
            chunk = todo[start : start + config.chunk_size]
            within_reach = [question for question in chunk if coverage.answers(question)]
            found = {r.question_id: r for r in (worker.run(within_reach, file.attempted) if within_reach else [])}
            file.add([found.get(question.id) or _out_of_reach(question, model_name) for question in chunk])
            bar.update(len(chunk))
    return file.finish()


def _out_of_reach(question: Question, model_name: str) -> Repair:
    """The record of a question whose gold the corpus does not have: no program could be verified, so none is run."""
    return Repair(
        question.id,
        parent="",
        child=None,
        verdict="gold_missing",
        model=model_name,
        type=question.type,
        dataset=question.dataset,
    )


class _Harvester:
    """Turns questions into finished records; equal questions and settings give equal records.

    Args:
        policy: Whose failures are repaired.
        environment: Connected to the policy's tokenizer.
        config: What to do.
        model_name: Stands in the records.
        recorded: What the policy wrote before, by question id; new samples are drawn where that is too little.
    """

    def __init__(
        self,
        policy: OpenedPolicy,
        environment: Environment,
        config: HarvestConfig,
        model_name: str,
        recorded: Mapping[str, Sequence[Attempt]],
    ) -> None:
        self._policy, self._config = policy, config
        self._executor, library = environment.executor, environment.library
        self._without = set(SERVED) - set(library.primitives)
        self._verifier = GoldVerifier(library.passage)
        self._model_name = model_name
        limit = min(config.repair.max_printed_tokens, environment.config.limits.printed_tokens)
        self._repair = replace(config.repair, max_printed_tokens=limit)
        self._starts = Starts(policy, environment, self._verifier, config, recorded, limit)
        self._answerer: Answerer | None = None
        if config.benefit:
            self._answerer = Answerer(policy, config.seed_program, config.answer_tokens, config.batch_size)

    def run(self, questions: Sequence[Question], attempted: int) -> list[Repair]:
        """Returns the finished records of a chunk.

        Args:
            questions: The chunk.
            attempted: How many failed questions came before it.
        """
        starts = self._starts.of(questions)
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

    def _record(self, start: Start) -> Repair:
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

    def _controls(self, starts: Sequence[Start], records: Sequence[Repair]) -> list[tuple[Control, Trace | None]]:
        tasks = [
            ControlTask(start.question, start.parent, record.executions)
            for start, record in zip(starts, records, strict=True)
        ]
        return resample(
            tasks,
            policy=self._policy,
            executor=self._executor,
            verifier=self._verifier,
            config=self._config.control,
            max_printed_tokens=self._repair.max_printed_tokens,
            seed=self._config.seed,
        )

    def _benefits(
        self, starts: Sequence[Start], records: Sequence[Repair], controls: Sequence[tuple[Control, Trace | None]]
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

    def _parent_traces(self, starts: Sequence[Start]) -> list[Trace]:
        jobs = [(start.parent.source, start.question.question) for start in starts if start.parent_trace is None]
        fresh = iter(self._executor.run_many(jobs) if jobs else [])
        traces = [start.parent_trace or next(fresh) for start in starts]
        for trace in traces:
            Budget(1).spend(trace)
        return traces
