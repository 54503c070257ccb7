"""The environment: a library and the executor that runs programs on it, opened when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rpl.core.errors import ConfigError
from rpl.environment.faults import FaultTolerantExecutor
from rpl.executors.base import ExecutionLimits, Executor, TokenCounter
from rpl.executors.isolation.layers import unknown
from rpl.executors.parent.sandbox import SandboxExecutor
from rpl.retrieval.library.health import HealthConfig, HealthWatch
from rpl.retrieval.library_config import LibraryConfig

if TYPE_CHECKING:
    from rpl.retrieval.library.library import Library


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
    """How often a program that retrieval or the sandbox failed is run again before its rollout is void: at once, then
    when retrieval answers canary queries again. This is the only number of retries; see `rpl.environment.faults`."""
    health: HealthConfig = field(default_factory=HealthConfig)
    """Canary queries, and how long a run waits for retrieval."""
    min_answerable: float = 0.05
    """Least share of the questions with gold passages whose gold the corpus has, in [0, 1]; training, harvests and
    evaluations below it are refused before they begin. 0 refuses nothing."""
    require_layers: tuple[str, ...] = ()
    """Layers of the sandbox without which nothing runs: `audit_hook`, `no_new_privileges`, `resource_limits`,
    `namespaces`, `landlock`, `seccomp`. One that is not named here and that the machine lacks is told in a log line."""
    executor: str = "restricted"
    """What runs the programs: `restricted`, which is CPython behind guards, and nothing else."""

    def with_corpus(self, corpus: str | None) -> EnvironmentConfig:
        """Returns the same settings over another corpus; `None` leaves it as it is."""
        return self if corpus is None else replace(self, library=replace(self.library, corpus=corpus))

    def __post_init__(self) -> None:
        if self.executor == "monty":
            raise ConfigError("environment.executor: monty is gone; leave the key out, or write restricted")
        if self.executor != "restricted":
            raise ConfigError(f"environment.executor must be restricted, got {self.executor!r}")
        if self.workers < 1:
            raise ConfigError(f"environment.workers must be at least 1, got {self.workers}")
        if self.infra_retries < 0:
            raise ConfigError(f"environment.infra_retries must be at least 0, got {self.infra_retries}")
        if not 0 <= self.min_answerable <= 1:
            raise ConfigError(f"environment.min_answerable must be in [0, 1], got {self.min_answerable}")
        if unknown(self.require_layers):
            raise ConfigError(f"environment.require_layers: {unknown(self.require_layers)}")


class Environment:
    """Opens the library and starts the executor when they are first needed. Use it as a context manager, or close it.

    Args:
        config: The settings.
        library: An open library to use in place of `config.library`; it stays open when the environment closes.
        progress: Receives a line of text for each slow step of opening the library.
        executor: What runs the programs in place of the sandbox, as it is; it stays open as well.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        library: Library | None = None,
        progress: Callable[[str], None] | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.config = config
        self._given = library
        self._opened: Library | None = None
        self._sandbox: SandboxExecutor | None = None
        self._executor = executor
        self._count_tokens: TokenCounter | None = None
        self._progress = progress

    @property
    def library(self) -> Library:
        """The library; opened at first use."""
        if self._given is not None:
            return self._given
        if self._opened is None:
            from rpl.retrieval.library.opening import open_library

            self._opened = open_library(self.config.library, self._progress)
        return self._opened

    @property
    def primitives(self) -> tuple[str, ...]:
        """The primitives that work in the library; empty where none was opened yet."""
        library = self._given or self._opened
        return () if library is None else library.primitives

    @property
    def identity(self) -> dict[str, Any]:
        """Digests and values of all that decides what programs print: corpus, retrieval settings, limits."""
        limits = {f"limits.{name}": value for name, value in asdict(self.config.limits).items()}
        return {**self.library.identity, **limits}

    @property
    def executor(self) -> Executor:
        """The executor on that library, which watches its health; made at first use.

        Raises:
            RetrieverError: The library is not healthy.
        """
        if self._executor is None:
            self._executor = FaultTolerantExecutor(
                self.sandbox, HealthWatch(self.library, self.config.health), self.config.infra_retries
            )
        return self._executor

    @property
    def sandbox(self) -> SandboxExecutor:
        """What runs the programs, without the watch; made at first use."""
        if self._sandbox is None:
            config = self.config
            executor = SandboxExecutor(config.limits, config.workers, config.require_layers)
            if config.require_layers:
                executor.layers()  # says so now where one is missing, not at the first program
            executor.attach(self.library)
            if self._count_tokens is not None:
                executor.connect(self._count_tokens)
            self._sandbox = executor
        return self._sandbox

    def connect(self, count_tokens: TokenCounter) -> None:
        """Sets the tokenizer that observations are measured with; does not open anything."""
        self._count_tokens = count_tokens
        if self._sandbox is not None:
            self._sandbox.connect(count_tokens)

    def close(self) -> None:
        """Stops the workers and closes the library if this environment opened it; both reopen when used again."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = self._executor = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def __enter__(self) -> Environment:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
