"""The language as a whole: programs of every construct give what `conformance.yaml` says, and what Python gives."""

from __future__ import annotations

import ast
import contextlib
import io
import warnings
from pathlib import Path

import pytest
import yaml

from rpl.executors.parent.framing import text_frame
from rpl.executors.parent.sandbox import SandboxExecutor
from rpl.programs.grammar import ALLOWED_NODES, ATTRIBUTES, BUILTINS, PRIMITIVES, parse

QUESTION = "Which city is larger, Lyon or Nice?"
PROGRAMS = {entry["name"]: entry for entry in yaml.safe_load(Path(__file__).with_name("conformance.yaml").read_text())}
PROGRAMS["too long"] = {"source": "x = 1\n" * 3_000, "error": "budget_source"}


def names_of(source: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_is_written_down(shared: SandboxExecutor, name: str) -> None:
    program = PROGRAMS[name]
    trace = shared.run(program["source"], QUESTION)
    assert trace.infra_error is None
    assert (trace.error.kind if trace.error else None) == program.get("error")
    assert program.get("prints", "") in trace.observation


PLAIN = [
    name
    for name, program in PROGRAMS.items()
    if program.get("error", "runtime") == "runtime" and not names_of(program["source"]) & set(PRIMITIVES)
]


def python(source: str) -> tuple[str, str | None]:
    """What Python itself prints for a program, and the class of the error that it ends with."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # doubtful comparisons
            exec(compile(source, "<plain>", "exec"), {"question": QUESTION})
    except Exception as error:
        return printed.getvalue(), type(error).__name__
    return printed.getvalue(), None


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "names that only Python knows"])
def test_python_gives_the_same(shared: SandboxExecutor, name: str) -> None:
    trace = shared.run(PROGRAMS[name]["source"], QUESTION)
    printed, failure = python(PROGRAMS[name]["source"])
    shown = trace.observation
    if trace.error is not None:
        assert failure == trace.error.message.split(":")[0]
        shown = shown.rpartition("Error on line")[0]
    assert shown.strip() in (text_frame(printed.strip()).strip(), "(nothing printed)")


def test_a_difference_from_python_would_be_seen(shared: SandboxExecutor) -> None:
    with pytest.raises(AssertionError):
        test_python_gives_the_same(shared, "names that only Python knows")
    assert len(PLAIN) > 35


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
