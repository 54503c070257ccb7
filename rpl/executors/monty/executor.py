"""The executor that runs programs in Monty, an interpreter of a Python subset written in Rust.

A second implementation of the same language, for users who trust a memory-safe interpreter without a host's objects
more than guards around CPython, and for testing the first: the same grammar checks programs, the same parent serves and
counts them, and programs give the same traces but for the differences below (`restricted` is CPython behind guards).

| what | restricted | monty |
| --- | --- | --- |
| words of runtime errors | hints for models, CPython's words | CPython 3.14's words; the class and the line agree |
| fuel | loop steps and all calls | loop steps, and calls of functions of the program, primitives and print |
| size of values | `budget_size` past a bound | `budget_memory` or `timeout`; `budget_size` where it is printed |
| attributes of other types | refused | those that Python's type has, such as index of tuples, pop of sets |
| methods as values | a function | an error: a method can only be called |
| lazy iterators | zip, enumerate, reversed and generators are lazy | they are lists: any(...) evaluates all of them |
| order of sets | the order of a fixed hash seed | the order of insertion |
| key functions | may search and print | an error: a key function cannot search, read or print |
| errors in dict displays | a key that cannot be hashed comes first | what the values raise comes first |
| views of dicts | print as <dict_keys> | print as a list |
| text of functions | <function> | Monty's own words |
| % between texts | refused | formats |
| calls through another name | the line of the call | no line |
| digits of int | of every script | 0 to 9 |

The random programs of the tests show no other difference; those that run into a budget of size, fuel, recursion, memory
or time are not compared.

Covered and not covered are as in `sandbox`, with the child process in the place of the worker: it has no environment,
no network and no privileges, the worker's limits and Landlock, but a wider system-call filter (see `monty_worker`). Its
address space is `limits.memory_mb` above a fixed share, and Monty's own limit on memory is `limits.memory_mb`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from rpl.core.errors import MissingDependencyError
from rpl.executors.backend import Backend
from rpl.executors.base import ExecutionLimits
from rpl.executors.parent.sandbox import SandboxExecutor

MONTY = Backend(
    name="monty",
    module="rpl.executors.monty.worker",
    packages=("RestrictedPython", "pydantic_monty", "typing_extensions"),
    install="pip install 'retrieval-program-learning[monty]'",
)
"""The Monty interpreter, in a child process of the worker."""


class MontyExecutor(SandboxExecutor):
    """Runs programs in Monty; the module's docstring says what differs from `RestrictedExecutor`.

    Args:
        limits: See `SandboxExecutor`, like the others.
        workers: Workers; each is a process with the interpreter as its child.
        infra_retries: See `SandboxExecutor`.
        require_layers: See `SandboxExecutor`.

    Raises:
        MissingDependencyError: Monty is not installed.
    """

    backend = MONTY

    def __init__(
        self,
        limits: ExecutionLimits = ExecutionLimits(),
        workers: int = 2,
        infra_retries: int = 2,
        require_layers: Sequence[str] = (),
    ) -> None:
        if importlib.util.find_spec("pydantic_monty") is None:
            raise MissingDependencyError(f"environment.executor: monty needs pydantic-monty; run: {MONTY.install}")
        super().__init__(limits, workers, infra_retries, require_layers)
