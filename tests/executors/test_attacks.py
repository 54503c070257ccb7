"""Runs the attack corpus through the real pool: each program ends as expected, and the next one runs as if alone.

`attacks/CATEGORY.yaml` is a list of entries:

    name        unique in its file
    source      the program: a text, or a list of texts and of [text, times], which are joined
    restricted  what becomes of it: `ok`, or the kind of the error; a list where that depends on the version of Python
    message     part of the error message
    printed     with `ok`: the whole observation
    limits      fields of `ExecutionLimits`, where the defaults are not meant
    reference   the advisory or report that the attack is known from

The question is QUESTION and the library the FakeLibrary of `conftest`. Nothing in the corpus may end in an
infrastructure error, kill a worker other than by a limit, or show a passage that the program did not fetch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from executor_fakes import FakeLibrary

from rpl.core.records import Trace
from rpl.executors.base import ExecutionLimits
from rpl.executors.parent.sandbox import SandboxExecutor

FOLDER = Path(__file__).parent / "attacks"
QUESTION = "who?"
KEYS = {"name", "source", "restricted", "message", "printed", "limits", "reference"}
PROBE = "seen = {p.id for p in bm25(question, k=3)}\nfor i in seen:\n    print(read(i))\nprint(len(seen))"
"""Touches everything that an attack might have left behind: names, set order, the pipes, the library."""

CATEGORIES = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.yaml"))}
ATTACKS = [(category, entry) for category, entries in CATEGORIES.items() for entry in entries]
NAMES = [f"{category}: {entry['name']}" for category, entry in ATTACKS]


def program(entry: dict[str, Any]) -> str:
    """The text of an entry's program."""
    source = entry["source"]
    if isinstance(source, str):
        return source
    return "".join(part if isinstance(part, str) else part[0] * part[1] for part in source)


def outcomes(entry: dict[str, Any]) -> list[str]:
    """What may become of an entry: `ok` or kinds of errors."""
    expected = entry["restricted"]
    return [expected] if isinstance(expected, str) else expected


def check(entry: dict[str, Any], trace: Trace) -> None:
    """Fails unless the trace is what the entry expects."""
    assert trace.infra_error is None
    assert ("ok" if trace.error is None else trace.error.kind) in outcomes(entry), trace.error
    if trace.error is None:
        assert trace.observation == entry["printed"]
    else:
        assert entry.get("message", "") in trace.error.message
        assert "0x" not in trace.error.message
        assert len(trace.error.message) <= 300
    assert set(trace.printed_ids) <= set(trace.fetched_ids)


def timeless(trace: Trace) -> Trace:
    calls = tuple(dataclasses.replace(call, seconds=0.0, cached=False) for call in trace.calls)
    return dataclasses.replace(trace, calls=calls, seconds=0.0)


@pytest.fixture(scope="module")
def executor_for() -> Iterator[Callable[[dict[str, Any]], SandboxExecutor]]:
    """Gives the executor for an entry's limits; one with the default limits serves nearly all."""
    made: dict[str, SandboxExecutor] = {}

    def get(entry: dict[str, Any]) -> SandboxExecutor:
        key = json.dumps(entry.get("limits", {}), sort_keys=True)
        if key not in made:
            limits = ExecutionLimits(**({"wall_s": 20.0} | entry.get("limits", {})))
            made[key] = SandboxExecutor(limits, workers=1)
            made[key].attach(FakeLibrary())  # type: ignore[arg-type]
        return made[key]

    yield get
    for executor in made.values():
        executor.close()


@pytest.fixture(scope="module")
def healthy() -> Trace:
    """The trace of the probe on a worker that ran nothing else."""
    executor = SandboxExecutor(workers=1)
    executor.attach(FakeLibrary())  # type: ignore[arg-type]
    trace = timeless(executor.run(PROBE, QUESTION))
    executor.close()
    assert trace.error is None
    assert len(trace.printed_ids) == 3
    return trace


@pytest.mark.parametrize(("category", "entry"), ATTACKS, ids=NAMES)
def test_the_attack_fails_and_the_pool_is_whole(category, entry, executor_for, healthy):
    executor = executor_for(entry)
    check(entry, executor.run(program(entry), QUESTION))
    assert timeless(executor.run(PROBE, QUESTION)) == healthy


def test_the_corpus_is_complete():
    wanted = """
        attributes format frames scopes names operators numbers recursion parser bombs loops prints sorting primitives
        protocol system advisories
    """
    assert CATEGORIES.keys() == set(wanted.split())
    assert len(ATTACKS) >= 500
    assert len(set(NAMES)) == len(NAMES)
    assert len({program(entry) for _, entry in ATTACKS}) > 0.95 * len(ATTACKS)
    cves = {
        "CVE-2023-37271",
        "CVE-2023-41039",
        "CVE-2024-47532",
        "CVE-2025-22153",
        "CVE-2026-76825",
    }  # RestrictedPython
    cves |= {"CVE-2025-5120", "CVE-2025-9959", "CVE-2026-4963"}  # smolagents
    assert cves <= {entry.get("reference") for _, entry in ATTACKS}


def test_the_entries_are_well_formed():
    for category, entry in ATTACKS:
        assert entry.keys() <= KEYS, (category, entry)
        assert ("printed" in entry) == (outcomes(entry) == ["ok"]), (category, entry)


def test_the_checks_can_fail(executor_for):
    entry = {"name": "x", "source": "1 / 0", "restricted": "runtime", "message": "division by zero"}
    trace = executor_for(entry).run("1 / 0", QUESTION)
    check(entry, trace)
    for wrong in ({"restricted": "ok", "printed": ""}, {"message": "something else"}):
        with pytest.raises(AssertionError):
            check(entry | wrong, trace)
    with pytest.raises(AssertionError):
        check(entry, dataclasses.replace(trace, infra_error="gone"))
    with pytest.raises(AssertionError):
        check(entry, dataclasses.replace(trace, printed_ids=("p1",)))
