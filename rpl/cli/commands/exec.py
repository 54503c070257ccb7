"""`rpl exec`: runs one program in the sandbox and shows its trace."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rpl.cli.commands.parsing import call
from rpl.cli.commands.showing import write_record
from rpl.core.errors import DataError, RetrieverError
from rpl.core.records import Trace
from rpl.core.tags import defuse
from rpl.core.units import count_text
from rpl.environment.environment import Environment, EnvironmentConfig


def execute(
    program: str,
    question: str,
    corpus: str | None = None,
    environment: EnvironmentConfig = EnvironmentConfig(),
    json: bool = False,
) -> Trace:
    """Runs one program in the sandbox and prints its trace.

    Args:
        program: File with the program, or `-` for standard input.
        question: What the program sees as `question`.
        corpus: Short for `--environment.library.corpus`.
        environment: Corpus, indexes and limits.
        json: Print the whole trace as JSON.
    """
    source = sys.stdin.read() if program == "-" else _read(Path(program))
    with Environment(environment.with_corpus(corpus)) as env:
        trace = env.executor.run(source, question)
    if trace.infra_error is not None:
        raise RetrieverError(trace.infra_error)
    write_record(trace, describe, json)
    return trace


def describe(trace: Trace) -> str:
    """Returns a trace as text: calls, then what the program put into the context, as the policy would read it."""
    lines = [f"{count_text(len(trace.calls), 'primitive call')}, fuel {trace.fuel}, {trace.seconds * 1000:.0f} ms"]
    for c in trace.calls:
        args = ", ".join(f"{name}={value!r}" for name, value in c.args.items())
        cached = ", cached" if c.cached else ""
        lines.append(f"  line {c.line}: {c.name}({args}) -> {count_text(len(c.result_ids), 'passage')}{cached}")
    printed = ", ".join(trace.printed_ids) or "none"
    lines += [f"observation, {count_text(trace.printed_tokens, 'token')}, printed ids: {printed}"]
    lines += ["  " + line for line in defuse(trace.observation).split("\n")]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"{path}: no such program file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a program in UTF-8 ({error})") from error


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl exec`."""
    return call("exec", execute, args, positional=["program"])
