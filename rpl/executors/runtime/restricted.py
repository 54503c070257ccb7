"""Runs one program in this process: compiles it, binds its names, and turns whatever it raises into a `TraceError`.

This is the language level of the sandbox and not a boundary by itself; `worker` puts a process with limits around it.
Nothing here imports third-party code other than RestrictedPython.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType, MappingProxyType, TracebackType
from typing import Any

from rpl.core.errors import BudgetExceeded, ProgramError
from rpl.core.records import TraceError
from rpl.executors.protocol import MAX_PRINTED_CHARS, MAX_PRINTED_ITEMS
from rpl.executors.runtime.compiling import FILENAME, compile_program
from rpl.executors.runtime.fuel import Fuel
from rpl.executors.runtime.functions import Builtins
from rpl.executors.runtime.guards import MAX_FRAMES, Guards
from rpl.executors.runtime.hints import message_hint, name_hint
from rpl.executors.runtime.primitives import Host, Primitives, ProgramLimits
from rpl.executors.runtime.values import ProgramPassage, passage_line, render

MAX_STACK = 10 * MAX_FRAMES
"""Python's own recursion limit within a program: a backstop, for what the guards do not count."""

MAX_MESSAGE_CHARS = 300
"""Longest error message that is passed on."""

_LINES = "_lines_"  # no program can name it; the code's own line numbers are numbers of syntax nodes

_BUILTIN_CALL = re.compile(r"Builtins\._(\w+)\(\) (takes .*)?")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    error: TraceError | None
    fuel: int


class Printer:
    """Turns `print` calls into printed items and bounds their volume.

    Passages, alone or in lists that hold nothing else, become items of their own; other values of the same call are
    joined to a text, as Python would print it. A text that does not end in a line break (`end=' '`) is continued by the
    next one; a passage always has lines of its own.
    """

    def __init__(self, host: Host, fuel: Fuel) -> None:
        self.host = host
        self.fuel = fuel
        self.chars = 0
        self.items = 0

    def __call__(self, values: tuple[Any, ...], sep: str, end: str) -> None:
        """Prints the values of one call, then `end`."""
        texts: list[str] = []
        for value in values:
            passages = _only_passages(value)
            if not passages:
                texts.append(render(value, self.fuel.burn))
                continue
            self._flush(texts, sep)
            for passage in passages:
                self.fuel.burn()
                self._count(len(passage_line(passage)))
                self.host.print_passage(passage)
        if texts or not values:
            self._flush(texts or [""], sep, end)
            return
        rest = end.removeprefix("\n")  # the break after a passage is there already
        if rest.strip() or "\n" in rest:
            self._flush([""], sep, rest)

    def _flush(self, texts: list[str], sep: str, end: str = "\n") -> None:
        if not texts:
            return
        self._count(sum(map(len, texts)) + len(sep) * (len(texts) - 1) + len(end))
        text = sep.join(texts) + end.removesuffix("\n")
        if text or end:
            self.host.print_text(text, ends=end.endswith("\n"))
        texts.clear()

    def _count(self, chars: int) -> None:
        self.chars += chars
        self.items += 1
        if self.chars > MAX_PRINTED_CHARS or self.items > MAX_PRINTED_ITEMS:
            raise BudgetExceeded(
                "printed",
                f"the program printed more than {MAX_PRINTED_CHARS:,} characters or {MAX_PRINTED_ITEMS:,} items",
            )


def _only_passages(value: Any) -> list[ProgramPassage]:
    if type(value) is ProgramPassage:
        return [value]
    if type(value) in (list, tuple) and all(type(item) is ProgramPassage for item in value):
        return list(value)
    return []


def run_program(
    source: str,
    question: str,
    limits: ProgramLimits,
    host: Host,
    seal: Callable[[], AbstractContextManager[None]] = nullcontext,
    collect: Callable[[], object] = int,
) -> Outcome:
    """Runs a program; it starts clean and leaves nothing behind.

    Args:
        source: The program text.
        question: What the name `question` is bound to.
        limits: Its budgets.
        host: Serves its primitives and receives its prints.
        seal: Makes the context that its code runs in; see `hardening.install_audit_hook`.
        collect: Frees what it holds in circles; see `Fuel`.
    """
    fuel = Fuel(limits.fuel, collect)
    failure: TraceError | None = None
    scope: dict[str, Any] = {"__builtins__": {}, "question": question}
    try:
        compiled = compile_program(source, limits.source_chars)
        scope[_LINES] = compiled.lines
        guards = Guards(fuel)
        scope |= guards.names()
        scope |= Builtins(guards, Printer(host, fuel)).names()
        scope |= Primitives(host, limits, fuel).names()
        with _shallow_stack(), seal():
            exec(compiled.code, scope)
    except Exception as error:  # the boundary: a failed program is data
        failure = describe(error, scope)
    finally:
        scope.clear()  # frees what the program held, also after a MemoryError
    return Outcome(failure, fuel.used)


def describe(error: Exception, scope: Mapping[str, Any] = MappingProxyType({})) -> TraceError:
    """Returns an exception of a program as data: kind, message with a hint, line in the program.

    Args:
        error: What the program raised. Addresses and host paths in its message are left out.
        scope: The global names of the run; those that the program bound are offered for a name that is unknown.
    """
    line = _line(error.__traceback__)
    if isinstance(error, ProgramError):
        return TraceError(error.kind, _short(error.message), error.line if error.line is not None else line)
    if isinstance(error, RecursionError):
        return TraceError("budget_recursion", "functions and guards call each other too deeply", line)
    if isinstance(error, MemoryError):
        return TraceError("budget_memory", "the program needs more memory than it may use", line)
    return TraceError("runtime", _short(_message(error, scope)), line)


def _message(error: Exception, scope: Mapping[str, Any]) -> str:
    message = f"{type(error).__name__}: {error}"
    if type(error) is NameError and isinstance(error.name, str):
        return f"{message}; {name_hint(error.name, (name for name in scope if not name.startswith('_')))}"
    match = _BUILTIN_CALL.match(str(error))
    if match and isinstance(error, TypeError):
        return f"TypeError: {match[1]}() {'got too many arguments' if match[2] else str(error)[match.end() :]}"
    hint = message_hint(message)
    return f"{message}; {hint}" if hint else message


def current_line() -> int | None:
    """Returns the line of the program that is being executed, seen from a guard or primitive that it called."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _LINES not in frame.f_globals:  # its code would be audited, which takes time
        frame = frame.f_back
    return None if frame is None else _written_line(frame, frame.f_lineno)


def _line(traceback: TracebackType | None) -> int | None:
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == FILENAME:
            line = _written_line(traceback.tb_frame, traceback.tb_lineno) or line
        traceback = traceback.tb_next
    return line


def _written_line(frame: FrameType, node: int | None) -> int | None:
    return frame.f_globals[_LINES][node - 1] if node else None


def _short(message: str) -> str:
    message = _ADDRESS.sub("", message)
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…"


@contextmanager
def _shallow_stack() -> Iterator[None]:
    depth = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + MAX_STACK)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
