"""A library with an executor on it: what modules, harvests, evaluations and the command line run programs in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from rpl.errors import ConfigError
from rpl.executors.base import ExecutionLimits, TokenCounter
from rpl.executors.sandbox import RestrictedExecutor
from rpl.retrieval.config import LibraryConfig

if TYPE_CHECKING:
    from rpl.retrieval.library import Library


@dataclass(frozen=True)
class EnvironmentConfig:
    """What programs search, within which budgets, and how many run at once."""

    library: LibraryConfig = field(default_factory=LibraryConfig)
    """The corpus and its search backends."""
    limits: ExecutionLimits = field(default_factory=ExecutionLimits)
    """Budgets of each program."""
    workers: int = 2
    """Sandbox worker processes, and so programs that run at once."""
    infra_retries: int = 2
    """How often a failed retrieval call is tried again before its rollout is void."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"environment.workers must be at least 1, got {self.workers}")
        if self.infra_retries < 0:
            raise ConfigError(f"environment.infra_retries must be at least 0, got {self.infra_retries}")


class Environment:
    """Opens the library and starts the executor when they are first needed. Use it as a context manager, or close it.

    Args:
        config: The settings.
        library: An open library to use in place of `config.library`; it stays open when the environment closes.
        progress: Receives a line of text for each slow step of opening the library.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        library: Library | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.config = config
        self._given = library
        self._opened: Library | None = None
        self._executor: RestrictedExecutor | None = None
        self._count_tokens: TokenCounter | None = None
        self._progress = progress

    @property
    def library(self) -> Library:
        """The library; opened at first use."""
        if self._given is not None:
            return self._given
        if self._opened is None:
            from rpl.retrieval.library import open_library

            self._opened = open_library(self.config.library, self._progress)
        return self._opened

    @property
    def executor(self) -> RestrictedExecutor:
        """The executor on that library; made at first use."""
        if self._executor is None:
            executor = RestrictedExecutor(self.config.limits, self.config.workers, self.config.infra_retries)
            executor.attach(self.library)
            if self._count_tokens is not None:
                executor.connect(self._count_tokens)
            self._executor = executor
        return self._executor

    def connect(self, count_tokens: TokenCounter) -> None:
        """Sets the tokenizer that observations are measured with; does not open anything."""
        self._count_tokens = count_tokens
        if self._executor is not None:
            self._executor.connect(count_tokens)

    def close(self) -> None:
        """Stops the workers and closes the library if this environment opened it; both reopen when used again."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def __enter__(self) -> Environment:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
