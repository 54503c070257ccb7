"""The harvest: a policy's failed programs on training questions, their verified repairs, and the control beside them.

One record a question is appended to a file as soon as its chunk is done. A harvest that is started again skips what
the file holds; since every draw depends on its question alone, the file comes out the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rpl.core.contents import file_digest
from rpl.core.errors import DataError
from rpl.core.files import append_jsonl, digest, read_appended, write_json
from rpl.core.progress import say
from rpl.core.records import Question, Repair, from_dict, to_dict
from rpl.environment.environment import Environment
from rpl.environment.gold import check_gold
from rpl.policy.identity import renderer_identity
from rpl.policy.renderer import Renderer
from rpl.repair.config import SEED_PROGRAM, HarvestConfig
from rpl.repair.drafts import read_attempts
from rpl.repair.harvester import Harvester
from rpl.repair.summary import summarise
from rpl.sampling.sampler import Sampler

__all__ = ["SEED_PROGRAM", "HarvestConfig", "harvest"]


def harvest(
    questions: Sequence[Question],
    *,
    renderer: Renderer,
    sampler: Sampler,
    model: Any,
    environment: Environment,
    config: HarvestConfig,
    out: Path,
    model_name: str = "",
    rollouts: Path | None = None,
    phase: str | None = None,
    identity: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
    enough: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Harvests verified repairs, or continues to.

    Args:
        questions: Train questions.
        renderer: The transcript layout of the policy.
        sampler: Connected to the policy.
        model: The policy itself, for the log-likelihoods of the benefit; may be `None` where `config.benefit` is off.
        environment: Library and executor; connected to the renderer's tokenizer here.
        config: What to do.
        out: The repairs file, one record a line in the order of the questions. Beside it are written the settings,
            `<stem>.settings.json`, and in the end the summary, `<stem>.summary.json`.
        model_name: Stands in the records.
        rollouts: Recorded rollouts of the policy. Their programs, with their traces, stand in for new samples, which
            are drawn only for questions that have fewer than `config.num_samples`.
        phase: Only rollouts of this phase of the run are used; by default all.
        identity: Digests of the policy (`LocalPolicy.identity`). A file is continued only by an equal policy, and where
            it is `None`, nobody can tell and no file is continued.
        progress: Told the number of questions that were just finished.
        enough: Asked before each chunk once the file holds any; where it says yes, the other questions are left out.

    Returns:
        The summary; see `summarise`.

    Raises:
        DataError: A question is not of the train split, an id repeats, `out` holds other questions or was begun
            with other settings, or the corpus has the gold of (nearly) no question.
        RetrieverError: Retrieval failed; what was finished before stands in the file, and the harvest can go on.
    """
    _check_questions(questions)
    environment.connect(renderer.count_tokens)
    done = [from_dict(Repair, record) for record in read_appended(out)]
    _check_done(questions, done, out)
    settings = {**to_dict(config), "model": model_name, **environment.identity, **renderer_identity(renderer)}
    settings |= {"rollouts": None if rollouts is None else file_digest(rollouts), "phase": phase}
    settings |= {"policy": None} if identity is None else dict(identity)
    _check_settings(out, settings, questions, len(done))
    todo = questions[len(done) :]
    if progress is not None and done:
        progress(len(done))
    coverage = check_gold(questions, environment, "training questions to harvest")
    if todo:
        recorded = {} if rollouts is None else read_attempts(rollouts, [question.id for question in todo], phase)
        worker = Harvester(renderer, sampler, model, environment, config, model_name, recorded)
        attempted = sum(record.attempted for record in done)
        for start in range(0, len(todo), config.chunk_size):
            if done and enough is not None and enough():
                say(f"harvest: {len(done)} of {len(questions)} questions were tried, to keep the budget")
                break
            chunk = todo[start : start + config.chunk_size]
            within_reach = [question for question in chunk if coverage.answers(question)]
            found = {r.question_id: r for r in (worker.run(within_reach, attempted) if within_reach else [])}
            records = [found.get(question.id) or _out_of_reach(question, model_name) for question in chunk]
            append_jsonl(out, [to_dict(record) for record in records])
            attempted += sum(record.attempted for record in records)
            done += records
            if progress is not None:
                progress(len(chunk))
    summary = summarise(done)
    write_json(out.with_name(f"{out.stem}.summary.json"), summary)
    return summary


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


def _check_settings(out: Path, settings: Mapping[str, Any], questions: Sequence[Question], done: int) -> None:
    """Writes the settings beside a new file; refuses to continue a file that was begun with others, or by nobody knows.

    The questions are compared one by one, so that a harvest of more questions goes on with a file.
    """
    path = out.with_name(f"{out.stem}.settings.json")
    contents = [digest(json.dumps(to_dict(question), sort_keys=True)) for question in questions]
    ours = {**json.loads(json.dumps(settings)), "questions": contents}
    if done:
        remedy = "delete it to harvest again, or give another path"
        if not path.exists():
            raise DataError(
                f"{out}: its settings ({path.name}) are not beside it, so nobody can tell its policy; {remedy}"
            )
        before = json.loads(path.read_text(encoding="utf-8"))
        theirs = before.pop("questions", None)
        if theirs is None or "policy" in before or "policy" in ours:
            raise DataError(f"{out}: was begun without digests of policy and questions; {remedy}")
        changed = [
            f"{key}: {before.get(key)!r} there, {ours.get(key)!r} here"
            for key in sorted({*before, *settings})
            if before.get(key) != ours.get(key)
        ]
        changed += ["the questions"] if theirs[:done] != contents[:done] else []
        if changed:
            raise DataError(f"{out}: was begun with other settings ({', '.join(changed)}); {remedy}")
    write_json(path, ours)


def _check_questions(questions: Sequence[Question]) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.split != "train":
            raise DataError(
                f"question {question.id!r} is of split {question.split!r}; only train questions may be harvested"
            )
        if question.id in seen:
            raise DataError(f"question id {question.id!r} occurs twice")
        seen.add(question.id)


def _check_done(questions: Sequence[Question], done: Sequence[Repair], out: Path) -> None:
    for number, record in enumerate(done, start=1):
        wanted = questions[number - 1].id if number <= len(questions) else None
        if record.question_id != wanted:
            raise DataError(
                f"{out}:{number}: holds question {record.question_id!r} where this harvest has {wanted!r}; the file is "
                "of another harvest: remove it or give another path"
            )
