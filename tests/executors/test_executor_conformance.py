"""One language, two interpreters: the same programs give the same traces, and every difference is a row of a table.

The table stands in the docstring of `rpl.executors.monty.executor`; each of its rows is a case of `DIFFERENT` here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from executor_fakes import FakeLibrary
from executors.fuzz_strategies import legal, nearly_legal
from hypothesis import HealthCheck, given, settings
from program_strategies import sources

from rpl.core.records import Trace
from rpl.executors.base import ExecutionLimits
from rpl.executors.monty import executor as monty
from rpl.executors.monty.executor import MontyExecutor
from rpl.executors.parent.sandbox import RestrictedExecutor, SandboxExecutor
from rpl.programs.grammar import ALLOWED_NODES, ATTRIBUTES, BUILTINS, PRIMITIVES, parse

pytest.importorskip("pydantic_monty")

_ERROR_LINE = re.compile(r"(^|\n)Error( on line \d+)?: [^\n]*\Z")

QUESTION = "Which city is larger, Lyon or Nice?"


@dataclass
class Pair:
    restricted: SandboxExecutor
    monty: SandboxExecutor

    def run(self, source: str) -> tuple[Trace, Trace]:
        return self.restricted.run(source, QUESTION), self.monty.run(source, QUESTION)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    limits = ExecutionLimits(wall_s=20.0)
    made = Pair(RestrictedExecutor(limits, workers=1), MontyExecutor(limits, workers=1))
    for executor in (made.restricted, made.monty):
        executor.attach(FakeLibrary())  # type: ignore[arg-type]
    yield made
    made.restricted.close()
    made.monty.close()


def summary(trace: Trace) -> dict[str, Any]:
    """What both must agree on: all but fuel, seconds and the words of runtime errors."""
    assert trace.infra_error is None
    error = trace.error
    words = None if error is None else error.message
    if error is not None and error.kind == "runtime":
        words = error.message.split(":")[0]
    return {
        "printed": trace.observation if error is None else _ERROR_LINE.sub("", trace.observation),
        "printed_ids": trace.printed_ids,
        "omitted": trace.omitted,
        "calls": [(call.name, call.args, call.result_ids, call.line) for call in trace.calls],
        "error": error and (error.kind, words, error.line),
    }


PROGRAMS = {entry["name"]: entry for entry in yaml.safe_load(Path(__file__).with_name("conformance.yaml").read_text())}
PROGRAMS["too long"] = {"source": "x = 1\n" * 3_000, "error": "budget_source"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_give_the_same_trace(pair: Pair, name: str) -> None:
    program = PROGRAMS[name]
    restricted, other = map(summary, pair.run(program["source"]))
    assert other == restricted
    assert (restricted["error"] or [None])[0] == program.get("error")
    assert program.get("prints", "") in restricted["printed"]


def test_every_construct_of_the_grammar_is_among_the_programs() -> None:
    nodes, attributes, names = set(), set(), set()
    for program in PROGRAMS.values():
        if program.get("error") in ("syntax", "forbidden"):
            continue
        for node in ast.walk(parse(program["source"]).tree):
            nodes.add(type(node).__name__)
            attributes |= {node.attr} if isinstance(node, ast.Attribute) else set()
            names |= {node.id} if isinstance(node, ast.Name) else set()
    assert nodes >= ALLOWED_NODES
    assert names >= BUILTINS | set(PRIMITIVES)
    assert attributes >= ATTRIBUTES["Passage"]


# row of the table -> (program, what restricted prints or its kind of error, the same of monty)
DIFFERENT: dict[str, tuple[str, str, str]] = {
    "words of runtime errors": ("x = 1 + 'a'", "runtime", "runtime"),
    "fuel": ("x = sorted([3, 1, 2])\nprint(len(x))", "3", "3"),
    "size of values": ("x = 'a' * 2000000\nprint(len(x))", "budget_size", "2000000"),
    "attributes of other types": ("t = (4, 5)\nprint(t.index(5))", "runtime", "1"),
    "methods as values": ("f = 'A'.lower\nprint(f())", "a", "runtime"),
    "lazy iterators": ("print(any(len(bm25(q, k=1)) for q in ['a', 'b', 'c']))", "True", "True"),
    "order of sets": ("print([x for x in {'b', 'c', 'a', 'd', 'e'}] == ['b', 'c', 'a', 'd', 'e'])", "False", "True"),
    "key functions": ("print(sorted(['b', 'a'], key=lambda q: len(bm25(q, k=1))))", "['b', 'a']", "runtime"),
    "errors in dict displays": ("x = {[]: y}", "runtime", "runtime"),
    "views of dicts": ("print({'a': 1}.keys())", "<dict_keys>", "['a']"),
    "text of functions": ("print(str(len))", "<function>", "<built-in function len>"),
    "% between texts": ("print('%s' % 'a')", "runtime", "a"),
    "calls through another name": ("search = bm25\nprint(len(search('x', k=2)))", "2", "2"),
    "digits of int": ("print(int('١٢'))", "12", "runtime"),
}


def outcome(trace: Trace) -> str:
    return trace.observation if trace.error is None else trace.error.kind


@pytest.mark.parametrize("name", DIFFERENT)
def test_each_difference_is_what_the_table_says(pair: Pair, name: str) -> None:
    source, restricted, other = DIFFERENT[name]
    traces = pair.run(source)
    assert tuple(map(outcome, traces)) == (restricted, other)
    if restricted != other:
        return
    first, second = traces
    match name:  # what differs is not what was printed
        case "words of runtime errors":
            assert first.error != second.error
            assert summary(first) == summary(second)
        case "errors in dict displays":
            assert [trace.error and trace.error.message.split(":")[0] for trace in traces] == ["TypeError", "NameError"]
        case "fuel":
            assert first.fuel > second.fuel > 0
        case "lazy iterators":
            assert (len(first.calls), len(second.calls)) == (1, 3)
        case "calls through another name":
            assert (first.calls[0].line, second.calls[0].line) == (2, None)
        case _:
            pytest.fail(f"the programs of {name!r} do not differ")


def test_the_table_and_the_cases_have_the_same_rows() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", monty.__doc__ or "", re.MULTILINE)
    assert rows[2:] == list(DIFFERENT)


BOMBS = {
    "a list that is too long": ("x = [0] * 1000000000", "budget_memory"),
    "a text that doubles": ("x = 'a'\nwhile True:\n    x = x + x", "budget_memory"),
    "join": ("x = ('a' * 1000000).join(['b'] * 100000)", "budget_memory"),
    "replace": ("x = ('a' * 1000000).replace('a', 'b' * 100000)", "budget_memory"),
    "a print that is too long": ("x = ['a' * 100000] * 10000\nprint(x)", "budget_size"),
    "a print that unfolds": ("x = []\nfor i in range(500):\n    x = [x, x]\nprint(x)", "budget_fuel"),
    "a query that is too long": ("bm25('a' * 2000000)", "budget_size"),
    "many numbers": ("x = sum([1 for a in range(1000000) for b in range(1000000)])", "budget_fuel"),
    "deep values": ("x, y = [], []\nfor i in range(5000):\n    x, y = [x], [y]\nprint(x == y)", "budget_recursion"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_outgrows_monty_is_stopped_with_a_typed_error(pair: Pair, name: str) -> None:
    source, kind = BOMBS[name]
    assert outcome(pair.monty.run(source, QUESTION)) == kind
    assert outcome(pair.monty.run("print(1)", QUESTION)) == "1"


@pytest.mark.parametrize(
    "source",
    [
        "x = [0] * 1000000\nfor i in range(19000):\n    y = sorted(x)",
        "x = 3\nfor i in range(60):\n    x = x * x",
        "x, y = [], []\nfor i in range(60):\n    x, y = [x, x], [y, y]\nprint(x == y)",
    ],
)
def test_what_runs_on_inside_one_operation_is_killed_in_time(source: str) -> None:
    executor = MontyExecutor(ExecutionLimits(wall_s=0.5), workers=1)
    executor.attach(FakeLibrary())  # type: ignore[arg-type]
    assert executor.run("print(1)", QUESTION).error is None
    trace = executor.run(source, QUESTION)
    assert outcome(trace) == "timeout"
    assert trace.seconds < 0.5 + 0.5  # generous: the machine may be busy
    assert outcome(executor.run("print(1)", QUESTION)) == "1"
    executor.close()


def test_traces_are_the_same_in_any_worker_and_order(pair: Pair) -> None:
    programs = [program["source"] for program in PROGRAMS.values()]
    executor = MontyExecutor(ExecutionLimits(wall_s=20.0), workers=2)
    executor.attach(FakeLibrary())  # type: ignore[arg-type]
    backwards = executor.run_many([(source, QUESTION) for source in reversed(programs)])
    executor.close()
    for source, trace in zip(programs, reversed(backwards), strict=True):
        again = pair.monty.run(source, QUESTION)
        assert (summary(again), again.error, again.fuel) == (summary(trace), trace.error, trace.fuel)


BUDGETS = {"budget_size", "budget_memory", "budget_fuel", "budget_recursion", "timeout"}
# Ways of writing that a row of the table is about and that random programs run into.
_EXPLAINED = re.compile(r"any\(y in|%|\.lower(?!\()|str\(f\)")


def explained(source: str, restricted: Trace, other: Trace) -> bool:
    """Whether a row of the table says why two traces differ."""
    errors = [trace.error for trace in (restricted, other) if trace.error is not None]
    return (
        any(error.kind in BUDGETS for error in errors)
        or any("a key function" in error.message or "unhashable" in error.message for error in errors)
        or _EXPLAINED.search(source) is not None
    )


def agree(pair: Pair, source: str) -> None:
    restricted, other = pair.run(source)
    assert summary(other) == summary(restricted) or explained(source, restricted, other), source


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(legal)
def test_random_programs_give_the_same_trace(pair: Pair, source: str) -> None:
    agree(pair, source)


@pytest.mark.slow
@settings(max_examples=3_000, suppress_health_check=list(HealthCheck))
@given(legal | nearly_legal() | sources)
def test_many_random_programs_give_the_same_trace(pair: Pair, source: str) -> None:
    agree(pair, source)
