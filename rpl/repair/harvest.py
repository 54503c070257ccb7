"""The harvest: a policy's failed programs on training questions, their verified repairs, and the control beside them.

Chunk by chunk: where repair starts (`starts`), the search (`rpl.mutation`), the resample control (`control`), what both
are worth to an answerer (`benefit`), and one record a question into the file (`file`). Every draw depends on its
question alone, so a harvest that is stopped and started again writes the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from rpl.core.contents import file_digest
from rpl.core.progress import progress_bar, say
from rpl.core.records import Benefits, Question, Reading, Repair, Trace, to_dict
from rpl.core.seeds import derive_seed
from rpl.environment.environment import Environment
from rpl.environment.gold import check_gold
from rpl.executors.base import Executor
from rpl.mutation.budget import Budget, timeless
from rpl.mutation.localise import localise
from rpl.mutation.search import repair
from rpl.mutation.verify import GoldVerifier
from rpl.policy.bundle import check_primitives
from rpl.programs.grammar import parse
from rpl.programs.primitives import SERVED
from rpl.repair.benefit import Evidence, read_evidence
from rpl.repair.control import ControlTask, resample
from rpl.repair.file import RepairsFile
from rpl.repair.harvest_config import SEED_PROGRAM, HarvestConfig
from rpl.repair.starts import Attempt, Start, find_starts, read_attempts
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
    limit = min(config.repair.max_printed_tokens, environment.config.limits.printed_tokens)
    config = replace(config, repair=replace(config.repair, max_printed_tokens=limit))
    with progress_bar(len(questions), f"harvest {out.parent.name}", "q", initial=len(file.done)) as bar:
        for start in range(0, len(todo), config.chunk_size):
            if file.done and enough is not None and enough():
                say(f"harvest: {len(file.done)} of {len(questions)} questions were tried, to keep the budget")
                break
            chunk = todo[start : start + config.chunk_size]
            # No program could be verified for a question whose gold the corpus does not have, so none is run.
            reached = [question for question in chunk if coverage.answers(question)]
            repairs = _repair_chunk(reached, policy, environment, config, recorded, file.attempted) if reached else []
            found = {record.question_id: record for record in repairs}
            file.add(
                [
                    replace(
                        found.get(question.id) or Repair(question.id, parent="", child=None, verdict="gold_missing"),
                        model=model_name,
                        type=question.type,
                        dataset=question.dataset,
                    )
                    for question in chunk
                ]
            )
            bar.update(len(chunk))
    return file.finish()


def _repair_chunk(
    questions: Sequence[Question],
    policy: OpenedPolicy,
    environment: Environment,
    config: HarvestConfig,
    recorded: Mapping[str, Sequence[Attempt]],
    attempted: int,
) -> list[Repair]:
    """Returns the finished records of some questions; equal questions and settings give equal records.

    Args:
        questions: All within reach of the library.
        policy: Whose failures are repaired.
        environment: Connected to the policy's tokenizer.
        config: What to do.
        recorded: What the policy wrote before, by question id.
        attempted: How many failed questions came before these.
    """
    executor, verifier = environment.executor, GoldVerifier(environment.library.passage)
    without = set(SERVED) - set(environment.library.primitives)
    starts = find_starts(questions, policy, environment, verifier, config, recorded)
    records = [_search(start, executor, verifier, config, without) for start in starts]
    if config.reading_program is not None:
        source = parse(config.reading_program).source
        traces = executor.run_many([(source, question.question) for question in questions])
        for i, (question, trace) in enumerate(zip(questions, traces, strict=True)):
            Budget(1).spend(trace)
            if verifier.verify(question, trace, config.repair.max_printed_tokens).ok:
                records[i] = replace(records[i], reading=Reading(source, trace.observation))
    chosen = [i for i, record in enumerate(records) if record.attempted]
    if config.control_questions is not None:
        chosen = chosen[: max(0, config.control_questions - attempted)]
    if not chosen:
        return records
    controls = resample(
        [ControlTask(starts[i].question, starts[i].parent, records[i].executions) for i in chosen],
        policy=policy,
        executor=executor,
        verifier=verifier,
        config=config.control,
        max_printed_tokens=config.repair.max_printed_tokens,
        seed=config.seed,
    )
    for i, (control, _) in zip(chosen, controls, strict=True):
        records[i] = replace(records[i], control=control)
    if not config.benefit:
        return records
    parents = _parent_traces([starts[i] for i in chosen], executor)
    evidence = {
        # A control that drew no program at all has nothing better to show than what it was to replace.
        i: [Evidence(starts[i].question, t.observation) for t in (repaired, sample or parent, parent)]
        for i, (_, sample), parent in zip(chosen, controls, parents, strict=True)
        if (repaired := records[i].trace) is not None
    }
    shown = list(chain.from_iterable(evidence.values()))
    readings = iter(read_evidence(shown, policy, config.seed_program, config.answer_tokens, config.batch_size))
    for i in evidence:
        records[i] = replace(records[i], benefit=Benefits(next(readings), next(readings), next(readings)))
    return records


def _search(
    start: Start, executor: Executor, verifier: GoldVerifier, config: HarvestConfig, without: Collection[str]
) -> Repair:
    question, seed = start.question, derive_seed(config.seed, "repair", start.question.id)
    if start.solved is not None:
        kept = config.keep_successes
        return Repair(
            question_id=question.id,
            parent=start.parent.source,
            child=start.parent.source if kept else None,
            verdict="already_verified" if kept else "solved",
            failure=localise(question, start.solved).kind,
            trace=timeless(start.solved) if kept else None,
            seed=seed,
        )
    found = repair(
        question, start.parent, executor, verifier, config.repair, start.siblings, seed, without=frozenset(without)
    )
    return replace(found, from_seed_program=start.parent_trace is None)


def _parent_traces(starts: Sequence[Start], executor: Executor) -> list[Trace]:
    jobs = [(start.parent.source, start.question.question) for start in starts if start.parent_trace is None]
    fresh = iter(executor.run_many(jobs) if jobs else [])
    traces = [start.parent_trace or next(fresh) for start in starts]
    for trace in traces:
        Budget(1).spend(trace)
    return traces
