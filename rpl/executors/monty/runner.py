"""Runs programs in the Monty interpreter: feeds them, answers what they ask of the host, and reads how they ended.

Monty is written in Rust and runs in a process of its own, which is started once and gets a new session for each
program. Only plain values come from there; passages are numbers of this run (see `monty_prelude`).
"""

from __future__ import annotations

import decimal  # noqa: F401 - the client imports it when a number first needs it, and then no file can be opened
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from pydantic_monty import (
    FunctionSnapshot,
    Monty,
    MontyComplete,
    MontyCrashedError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    NameLookupSnapshot,
    SyncSnapshot,
)

from rpl.core.errors import BudgetExceeded, ForbiddenConstruct, ProgramError, ProgramSyntaxError
from rpl.core.records import Passage, TraceError
from rpl.executors.monty.prelude import FUEL, RANGE, SIZE, STOP, prelude
from rpl.executors.monty.source import HOST_CALLS, MontySource, instrument
from rpl.executors.runtime.fuel import Fuel
from rpl.executors.runtime.functions import MAX_RANGE, Builtins
from rpl.executors.runtime.guards import MAX_FRAMES, Guards
from rpl.executors.runtime.primitives import Host, Primitives, ProgramLimits
from rpl.executors.runtime.restricted import Outcome, Printer, describe
from rpl.executors.runtime.values import MAX_CHARS, ProgramPassage, size_error

GRACE_S = 2.0
"""Seconds after which Monty stops a program by itself, past the limit at which the parent kills the worker."""

_PROGRAM = "<python-input-1>"
"""What Monty calls the second text of a session; the first is the prelude."""

_NO_LIMIT = 2**31 - 1

_SIGNAL = re.compile(r"signal: (\d+)")

_NAME = re.compile(r"name '(\w+)' is not defined")

_WARM_UP = (
    "print(1, 2.5, 'a', None, True, [1], (1,), {1}, {1: 2}, len, range(3), 10 * 999999999999 * 999999999999)",
    "print(unique([]), question[0])",
    "print({}['a'])",
    "print(bm25())",
)
"""Programs that take each way through the client once."""


class ChildGoneError(Exception):
    """The process that Monty runs in has ended; the worker cannot start another one.

    Attributes:
        signal: The number of the signal that ended it, or `None`.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"the Monty process ended: {message}")
        found = _SIGNAL.search(message)
        self.signal = int(found[1]) if found else None


class MontyRunner:
    """Owns the Monty process.

    Args:
        path: The interpreter; see `binary`.
        memory_mb: What a program may allocate, in MiB.
        wall_s: The wall-clock limit that the parent keeps, in seconds.

    Attributes:
        pid: The process that programs run in.
    """

    def __init__(self, path: str, memory_mb: int, wall_s: float) -> None:
        self.wall_s = wall_s
        self._limits: Any = {
            "max_memory": memory_mb * 2**20,
            "max_feed_duration_secs": wall_s + GRACE_S,
            "max_recursion_depth": MAX_FRAMES,
            "max_suspensions": _NO_LIMIT,  # calls and prints have budgets of their own
        }
        self._pool = Monty(
            binary_path=path, min_processes=1, max_processes=1, max_checkouts_per_worker=_NO_LIMIT
        ).__enter__()
        self._run: _Run | None = None
        with self._pool.checkout() as session:  # starts the process and all threads
            session.feed_run("0")
            pid = session.worker_pid
        assert pid is not None
        self.pid = pid
        for program in _WARM_UP:  # loads what the client loads when it first needs it
            self.run(program, "", ProgramLimits(9, 9, 99, 999), _Nowhere())

    def line(self) -> int | None:
        """Returns the line of the program that is being executed."""
        return None if self._run is None else self._run.line

    def close(self) -> None:
        """Ends the Monty process."""
        self._pool.__exit__(None, None, None)

    def run(self, source: str, question: str, limits: ProgramLimits, host: Host, seal: object = None) -> Outcome:
        """Runs a program; see `restricted.run_program`. Nothing runs in this process, so there is nothing to seal.

        Raises:
            ChildGoneError: The Monty process ended.
        """
        fuel = Fuel(limits.fuel)
        try:
            program = instrument(source, limits.source_chars)
        except ProgramError as error:
            return Outcome(describe(error), 0)
        self._run = _Run(program, host, limits, fuel)
        try:
            with self._pool.checkout(limits=self._limits) as session:
                return self._run.drive(session, question)
        except MontyCrashedError as error:
            raise ChildGoneError(str(error)) from error
        finally:
            self._run = None


class _Run:
    """One run of one program.

    Attributes:
        line: The line of the program that asked the host last.
    """

    def __init__(self, program: MontySource, host: Host, limits: ProgramLimits, fuel: Fuel) -> None:
        self.program = program
        self.limits = limits
        self.fuel = fuel
        self.line: int | None = None
        self.passages: list[ProgramPassage] = []
        self.failure: Exception | None = None
        names = Builtins(Guards(fuel), Printer(host, fuel)).names() | Primitives(host, limits, fuel).names()
        self.functions: dict[str, Callable[..., Any]] = {f"_{name}_": names[name] for name in HOST_CALLS}

    def drive(self, session: MontySession, question: str) -> Outcome:
        """Feeds the program and answers it until it ends."""
        try:
            session.feed_run(prelude(self.limits.fuel), print_callback=_no_print)
            inputs = {"question": question, **{name: _stub(name) for name in self.functions}}
            state = session.feed_start(self.program.text, inputs=inputs, print_callback=_no_print)
            while not isinstance(state, MontyComplete):
                if isinstance(state, FunctionSnapshot):
                    state = self._answer(state)
                elif isinstance(state, NameLookupSnapshot):
                    state = state.resume()  # a name that nothing binds
                else:
                    raise ForbiddenConstruct("async code is not part of the program language")
            return Outcome(None, self._used(state.output))
        except ForbiddenConstruct as error:
            return Outcome(describe(error), self.fuel.used)
        except MontySyntaxError as error:
            return Outcome(describe(ProgramSyntaxError(str(error.exception()))), 0)
        except MontyRuntimeError as error:
            reason: BaseException = error.exception()
            if isinstance(reason, RecursionError) and len(error.traceback()) > MAX_FRAMES // 2:
                reason = BudgetExceeded("recursion", f"functions call each other more than {MAX_FRAMES} levels deep")
            failure = self._describe(reason, self._line_of(error))
            # After running out of memory or time the state of the session is undefined, and so is its count.
            spent = failure.kind in ("budget_memory", "timeout")
            return Outcome(failure, self._used(0 if spent else self._burnt(session)))

    def _answer(self, state: FunctionSnapshot) -> SyncSnapshot:
        self.line = self.program.line_at(state.position.start) if state.position.filename == _PROGRAM else None
        function = self.functions.get(state.function_name)
        try:
            if function is None:
                raise ForbiddenConstruct(f"{state.function_name} is not part of the program language")
            args, kwargs = self._inward(state.args)
            result = self._outward(function(*args, **kwargs))
        except Exception as error:  # the boundary: a failed program is data
            self.failure = error
            return state.resume({"exc_type": "KeyboardInterrupt", "message": STOP})
        return state.resume({"return_value": result})

    def _inward(self, value: Any) -> Any:
        """Turns a value of Monty into one of the program language: bytes stand for passages and functions."""
        kind = type(value)
        if kind is bytes:
            return self.passages[int(value)] if value else _function
        if kind is list:
            return [self._inward(item) for item in value]
        if kind is tuple:
            return tuple([self._inward(item) for item in value])
        if kind is set:
            return {self._inward(item) for item in value}
        if kind is dict:
            return {self._inward(key): self._inward(item) for key, item in value.items()}
        return value if kind in (str, int, float, bool, type(None)) else _function

    def _outward(self, value: Any) -> Any:
        """Turns passages into rows with their number in this run."""
        if isinstance(value, list):
            return [self._outward(passage) for passage in value]
        if isinstance(value, ProgramPassage):
            self.passages.append(value)
            row = value.id, value.title, value.text, float(value.score), int(value.rank)
            return len(self.passages) - 1, *row
        return value

    def _describe(self, error: BaseException, line: int | None) -> TraceError:
        if isinstance(error, KeyboardInterrupt):
            error = self._interrupt(str(error))
        if isinstance(error, TimeoutError):
            return TraceError("timeout", "the program ran too long and was stopped", line)
        if isinstance(error, NameError) and (name := _NAME.match(str(error))):
            error.name = name[1]  # for the hint
        if isinstance(error, NotImplementedError) and "cannot suspend" in str(error):
            error = TypeError("a key function cannot search, read or print; do that before you sort")
        assert isinstance(error, Exception)
        described = describe(error)
        return described if described.line is not None else replace(described, line=line)

    def _interrupt(self, reason: str) -> Exception:
        if reason == FUEL:
            self.fuel.used = self.fuel.limit
            return BudgetExceeded("fuel", f"the program took more than {self.fuel.limit:,} steps")
        if reason == SIZE:
            return size_error("a value that is printed or handed to a primitive", MAX_CHARS)
        if reason == RANGE:
            return BudgetExceeded("size", f"a range is longer than {MAX_RANGE:,}")
        return self.failure or ForbiddenConstruct("raise is not part of the program language")

    def _line_of(self, error: Any) -> int | None:
        frames = [frame for frame in error.traceback() if frame.filename == _PROGRAM]
        return self.program.line(frames[-1].line, frames[-1].column - 1) if frames else None

    def _burnt(self, session: MontySession) -> Any:
        try:
            return session.feed_run("_burnt_", print_callback=_no_print)
        except MontyRuntimeError:  # the session is spent
            return 0

    def _used(self, burnt: Any) -> int:
        """Returns the fuel that the program burnt here and, by its own account, inside Monty."""
        return min(self.fuel.limit, self.fuel.used + (max(0, burnt) if type(burnt) is int else 0))


def binary() -> str:
    """Returns the path of the installed Monty interpreter, whatever the environment says.

    Raises:
        FileNotFoundError: It is not installed.
    """
    try:
        files: Sequence[Any] = distribution("pydantic-monty-runtime").files or ()
    except PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == "monty":
            return str(file.locate().resolve())
    raise FileNotFoundError("the package pydantic-monty-runtime is not installed")


class _Nowhere(Host):
    """Serves the programs of the warm-up."""

    def call(self, name: str, args: dict[str, Any]) -> Sequence[Passage]:
        return []

    def record(self, name: str, args: dict[str, Any], results: Sequence[Passage]) -> None: ...

    def print_text(self, text: str) -> None: ...

    def print_passage(self, passage: Passage) -> None: ...


def _stub(name: str) -> Callable[[], None]:
    def function() -> None: ...

    function.__name__ = name
    return function


def _function() -> None:
    """Stands for a function of the program in what it prints."""


def _no_print(stream: str, text: str) -> None:
    """Drops what Monty's own `print` writes, which programs cannot call."""
