"""One side of the executor benchmark: runs programs whose primitive gives the same three passages at once.

Started by `benchmarks.executor`, as `python -m benchmarks.executor_side SIDE …`. A peer's own environment imports this
file: what a side needs is imported where the side is made.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.turns import Turns

SIDES = ("rpl", "smolagents", "subprocess", "exec")

CALLS = 20
"""Primitive calls of the program `calls`."""

SEARCH = """\
hits = bm25(question, k=3)
for p in hits:
    if p.rank < 2:
        print(p.title)
words = [w for p in hits for w in p.text.split() if len(w) > 3]
print(len(words), NUMBER)
"""
PROGRAMS = {
    "empty": "x = 1\n",
    "search": SEARCH.replace("NUMBER", "0"),
    "search_new": SEARCH,  # every text is new, as from a policy that never writes the same program twice
    "calls": f"for i in range({CALLS}):\n    hits = bm25(question, k=3)\n",
}
QUESTION = "Which country does the city lie in?"
TEXT = "The city lies in the north of its country and has about two hundred thousand inhabitants. " * 3

RunMany = Callable[[Sequence[str]], list[str]]
"""Runs programs and returns what each printed."""


def texts(kind: str, start: int, count: int) -> list[str]:
    """Returns the program texts of one kind; those of `search_new` differ by a number."""
    return [PROGRAMS[kind].replace("NUMBER", str(number)) for number in range(start, start + count)]


def make_rpl() -> RunMany:
    """Programs in the worker pool, two at once."""
    from rpl.core.records import Passage
    from rpl.executors.parent.sandbox import SandboxExecutor
    from rpl.retrieval.library.library import CallResult

    found = CallResult(tuple(Passage(f"p{i}", f"Title {i}", TEXT, 1 / (1 + i), i) for i in range(3)), cached=False)

    class Trivial:
        def call(self, name: str, args: dict[str, Any]) -> CallResult:
            return found

    executor = SandboxExecutor(workers=2)
    executor.attach(Trivial())  # type: ignore[arg-type]
    lacking = [name for name, reason in executor.layers().items() if reason is not None]
    if lacking:
        print(f"layers that do not hold here: {', '.join(lacking)}", file=sys.stderr)

    def run(programs: Sequence[str]) -> list[str]:
        traces = executor.run_many([(program, QUESTION) for program in programs])
        for trace in traces:
            if trace.error is not None or trace.infra_error is not None:
                raise SystemExit(f"a program failed: {trace.error or trace.infra_error}")
        return ["" if trace.observation == "(nothing printed)" else trace.observation for trace in traces]

    return run


class Hit:
    """What the primitive gives on the sides that have no passages of their own."""

    def __init__(self, number: int) -> None:
        self.id, self.title, self.text, self.rank = f"p{number}", f"Title {number}", TEXT, number


def bm25(query: str, k: int) -> list[Hit]:
    """The primitive of the other sides."""
    return [Hit(number) for number in range(k)]


def run_in_this_process(program: str) -> str:
    """Runs a program with `exec` and no protection at all."""
    lines: list[str] = []
    scope = {"bm25": bm25, "question": QUESTION, "print": lambda *values: lines.append(" ".join(map(str, values)))}
    exec(compile(program, "<program>", "exec"), scope)
    return "\n".join(lines)


def make_exec() -> RunMany:
    """Programs by `exec` in this process."""
    return lambda programs: [run_in_this_process(program) for program in programs]


def make_subprocess() -> RunMany:
    """Each program in a fresh interpreter, two at once, without any protection but the process."""
    code = "import sys\nfrom benchmarks.executor_side import run_in_this_process as r\nprint(r(sys.stdin.read()))"
    root = Path(__file__).parents[1]

    def one(program: str) -> str:
        command = [sys.executable, "-S", "-c", code]
        done = subprocess.run(command, input=program, capture_output=True, text=True, check=True, cwd=root)
        return done.stdout.rstrip("\n")

    threads = ThreadPoolExecutor(2)
    return lambda programs: list(threads.map(one, programs))


def make_smolagents() -> RunMany:
    """Programs in smolagents' interpreter, in this process."""
    from smolagents.local_python_executor import LocalPythonExecutor

    def one(program: str) -> str:
        executor = LocalPythonExecutor(additional_authorized_imports=[])
        executor.send_tools({"bm25": bm25})
        executor.send_variables({"question": QUESTION})
        return executor(program).logs.rstrip("\n")  # type: ignore[no-any-return, unused-ignore]

    return lambda programs: [one(program) for program in programs]


MAKERS: dict[str, Callable[[], RunMany]] = {
    "rpl": make_rpl,
    "smolagents": make_smolagents,
    "subprocess": make_subprocess,
    "exec": make_exec,
}


def main(arguments: list[str] | None = None) -> None:
    """Takes turns until the benchmark has had enough."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--singles", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    args = parser.parse_args(arguments)
    turns = Turns()
    run = MAKERS[args.side]()
    digest = hashlib.sha256()
    for kind in PROGRAMS:
        digest.update("\x1e".join(run(texts(kind, 0, 4))).encode())
    turns.ready(printed=digest.hexdigest()[:16])
    written = 4
    for _ in range(args.turns):
        turns.wait()
        began = time.perf_counter()
        report: dict[str, Any] = {}
        for kind in PROGRAMS:
            seconds = []
            for program in texts(kind, written, args.singles):
                started = time.perf_counter()
                run([program])
                seconds.append(time.perf_counter() - started)
            written += args.singles
            report[f"{kind}_ms"] = 1000 * median(seconds)
        programs = texts("search", 0, args.batch)
        started = time.perf_counter()
        run(programs)
        report["programs_per_s"] = args.batch / (time.perf_counter() - started)
        turns.done(time.perf_counter() - began, **report)
    turns.finish()


if __name__ == "__main__":
    main()
