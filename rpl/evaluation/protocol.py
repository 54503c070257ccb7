"""Running a system over questions: batch by batch, resumable, and stopped by infrastructure errors.

A file of records starts with one header line (`{"evaluation": {...}}`) that holds the system's identity (digests of its
weights, tokenizer, template and corpus, retrieval settings, limits), its settings and a digest of the questions; the
records follow, one a line, in the order of the questions, and after each batch what became of its calls of retrieval
(`{"retrieval": {...}}`). A killed evaluation that is started again answers only what is missing. A file whose header is
not the same, value by value, is refused: names and paths may stay while what they name is replaced.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rpl.agents.system import System
from rpl.core.errors import CheckpointError, ConfigError, DataError, RetrieverError
from rpl.core.files import append_jsonl, digest, read_appended, read_jsonl
from rpl.core.progress import progress_bar
from rpl.core.records import Question, Rollout, from_dict, to_dict
from rpl.evaluation.records import EvalResult, QuestionRecord, record
from rpl.retrieval.library.counting import CallCounts


def evaluate(
    system: System,
    questions: Sequence[Question],
    *,
    out: Path | None = None,
    progress: bool = True,
    phase: str = "",
    settings: Mapping[str, Any] | None = None,
    batch: int = 64,
    allow_void: bool = False,
) -> EvalResult:
    """Answers all questions with one system and scores them.

    Args:
        system: What is measured.
        questions: With accepted answers, and gold ids where known; ids must be unique.
        out: File of records (JSON lines). Batches that are already in it are not answered again, if the file is of this
            very evaluation: equal identity, settings, questions and batches.
        progress: Whether to show a bar on standard error.
        phase: After which training phase the weights were taken.
        settings: What identifies the run beyond the system's own identity and settings; JSON values.
        batch: Questions between two writes. Batches are always cut at the same places, so that a resumed evaluation
            gives the same numbers as an uninterrupted one.
        allow_void: Whether to go on where infrastructure failed a question, and to score the others. The result says
            how many were left out (`EvalResult.num_void`, and `void` in its row).

    Raises:
        RetrieverError: Retrieval or the sandbox failed on a question, retries included, and `allow_void` is off; or it
            failed on all of several questions in a batch. No number is made of it; finished batches stay in `out`.
        CheckpointError: `out` belongs to another evaluation, or nobody can tell whose it is: the system has no
            identity, or the file is of a version that recorded none.
        DataError: There is no question, or an id stands twice.
    """
    _check_questions(questions)
    if batch < 1:
        raise ConfigError(f"batch must be at least 1, got {batch}")
    # as the file will hold them, so that a resumed run compares like with like
    identity = None if system.identity is None else _json({**system.identity})
    all_settings = {**(identity or {}), **_json({**system.settings, **(settings or {})})}
    header = {
        "name": system.name,
        "phase": phase,
        "questions": questions_digest(questions),
        "num_questions": len(questions),
        "batch": batch,
        "identity": identity,
        "settings": all_settings,
    }
    done, counts = _resume(out, header)
    if not allow_void:  # an earlier run was allowed to leave questions out; this one answers them
        done = {name: item for name, item in done.items() if item.void is None}
    with progress_bar(len(questions), f"eval {system.name}", "q") if progress else nullcontext() as bar:
        for start in range(0, len(questions), batch):
            part = questions[start : start + batch]
            missing = [question for question in part if question.id not in done]
            if missing:
                # the whole batch again, even where a torn write left some of it: sampling sees the same batch
                before = system.retrieval
                fresh = _answer(system, part, len(done), out, allow_void)
                made = system.retrieval - before
                counts += made
                new = [item for item in fresh if item.question_id not in done]
                if out is not None:
                    asked = [{"retrieval": to_dict(made)}] if made != CallCounts() else []
                    append_jsonl(out, [*map(to_dict, new), *asked])
                done.update((item.question_id, item) for item in new)
            if bar is not None:
                bar.update(len(part))
    records = tuple(done[question.id] for question in questions)
    return EvalResult(system.name, records, phase, all_settings, out, counts)


def questions_digest(questions: Sequence[Question]) -> str:
    """Returns a digest of all that a record takes from a question: ids, texts, answers, gold ids, data set and type."""
    return digest(*(json.dumps([*parts]) for q in questions for parts in _parts(q)))


def _parts(question: Question) -> tuple[Sequence[str], ...]:
    names = (question.id, question.question, question.dataset, question.type)
    return names, question.answers, question.gold_docs


def load_result(path: Path) -> EvalResult:
    """Reads a file of records that `evaluate` wrote.

    Raises:
        DataError: The file is missing, is not a file of records, or is unfinished.
    """
    lines = list(read_jsonl(path))
    if not lines or "evaluation" not in lines[0][1]:
        raise DataError(f"{path}: not a file of evaluation records (no header in line 1)")
    header = lines[0][1]["evaluation"]
    try:
        records, counts = _read_records(lines[1:])
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}:{error.args[-1]}: not an evaluation record: {error.args[0]}") from error
    if len(records) != header["num_questions"]:
        raise DataError(
            f"{path}: unfinished evaluation: {len(records)} of {header['num_questions']} questions; "
            "run the same evaluation again to finish it"
        )
    return EvalResult(header["name"], tuple(records.values()), header["phase"], header["settings"], path, counts)


def _answer(
    system: System, part: Sequence[Question], finished: int, out: Path | None, allow_void: bool
) -> list[QuestionRecord]:
    began = time.perf_counter()
    rollouts = system.answer(part)
    seconds = (time.perf_counter() - began) / len(part)
    if [rollout.question_id for rollout in rollouts] != [question.id for question in part]:
        raise ValueError(f"{system.name} must return one rollout a question, in order")
    void = [rollout for rollout in rollouts if rollout.infra_error is not None]
    if void and not (allow_void and len(void) < max(2, len(rollouts))):
        _stop(system, void, finished, out)
    return [record(q, rollout, seconds) for q, rollout in zip(part, rollouts, strict=True)]


def _stop(system: System, void: Sequence[Rollout], finished: int, out: Path | None) -> None:
    kept = f"; {finished} finished question(s) are kept in {out}, the same command goes on from there" if out else ""
    others = f" and {len(void) - 1} more" if len(void) > 1 else ""
    counts = f" ({system.retrieval})" if system.retrieval != CallCounts() else ""
    raise RetrieverError(
        f"evaluation of {system.name} stopped: retrieval failed on question {void[0].question_id!r}{others}: "
        f"{void[0].infra_error}{counts}{kept}"
    )


def _check_questions(questions: Sequence[Question]) -> None:
    if not questions:
        raise DataError("there is no question to evaluate")
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise DataError(f"question id {question.id!r} stands twice; records are paired by id")
        seen.add(question.id)


def _resume(out: Path | None, header: dict[str, Any]) -> tuple[dict[str, QuestionRecord], CallCounts]:
    if out is None:
        return {}, CallCounts()
    lines = read_appended(out)
    if not lines:
        append_jsonl(out, [{"evaluation": header}])
        return {}, CallCounts()
    found = lines[0].get("evaluation")
    if isinstance(found, dict) and found.get("identity") is None:
        raise CheckpointError(
            f"{out} does not say by content what answered (an earlier version wrote it, or a system without an "
            "identity), so its records cannot be told from those of another system; delete it or write to another file"
        )
    if header["identity"] is None:
        raise CheckpointError(
            f"{out} holds records, and {header['name']} has no identity to compare with theirs (System.identity is "
            "None); delete it or write to another file"
        )
    if found != header:
        theirs, ours = _flat(found if isinstance(found, dict) else {}), _flat(header)
        wrong = [key for key in dict.fromkeys((*ours, *theirs)) if theirs.get(key) != ours.get(key)]
        detail = ", ".join(f"{key}: {theirs.get(key)!r} there, {ours.get(key)!r} here" for key in wrong)
        raise CheckpointError(
            f"{out} belongs to another evaluation ({detail}); delete it to measure again, or write to another file"
        )
    return _read_records(enumerate(lines[1:], start=2))


def _flat(header: Mapping[str, Any]) -> dict[str, Any]:
    settings = header.get("settings")
    own = {key: value for key, value in header.items() if key not in ("settings", "identity")}
    return {**own, **(settings if isinstance(settings, dict) else {})}


def _json(values: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(to_dict(values), default=str))
    return read


def _read_records(lines: Iterable[tuple[int, Mapping[str, Any]]]) -> tuple[dict[str, QuestionRecord], CallCounts]:
    """Reads what follows the header; where a question stands twice, the later record counts."""
    records: dict[str, QuestionRecord] = {}
    counts = CallCounts()
    for number, line in lines:
        try:
            if "retrieval" in line:
                counts += from_dict(CallCounts, line["retrieval"])
            else:
                item = from_dict(QuestionRecord, line)
                records[item.question_id] = item
        except (KeyError, TypeError) as error:
            raise type(error)(str(error), number) from error
    return records, counts
