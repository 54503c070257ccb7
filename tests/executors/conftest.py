"""A small library, and executors on it that are closed after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from executor_fakes import FakeLibrary

from rpl.executors.base import ExecutionLimits
from rpl.executors.parent.sandbox import SandboxExecutor

collect_ignore = ["protocol_fuzz.py"]  # needs atheris; `make fuzz-protocol` runs it


@pytest.fixture
def library() -> FakeLibrary:
    return FakeLibrary()


@pytest.fixture
def make_executor(library: FakeLibrary) -> Iterator[Callable[..., SandboxExecutor]]:
    """Makes executors with limits given by name."""
    made: list[SandboxExecutor] = []

    def make(workers: int = 1, **limits: Any) -> SandboxExecutor:
        executor = SandboxExecutor(ExecutionLimits(**limits), workers)
        executor.attach(library)  # type: ignore[arg-type]
        made.append(executor)
        return executor

    yield make
    for executor in made:
        executor.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[SandboxExecutor]:
    """One executor with default limits for all tests of a file that leave their library alone."""
    executor = SandboxExecutor(ExecutionLimits(wall_s=30.0), workers=1)
    executor.attach(FakeLibrary())  # type: ignore[arg-type]
    yield executor
    executor.close()
