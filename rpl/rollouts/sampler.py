"""The interface of sampling: token ids in, token ids out, several turns, state kept in a session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rpl.errors import ConfigError
from rpl.types import FinishReason


@dataclass(frozen=True)
class SamplingParams:
    """How one completion is drawn. Training draws from the whole vocabulary: no top-p, no top-k."""

    max_new_tokens: int = 128
    """Most tokens in one completion."""
    temperature: float = 1.0
    """Softmax temperature; 0 means greedy."""
    stop: tuple[str, ...] = ("</program>", "</answer>")
    """A completion ends with the token that completes one of these texts (the token is kept)."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if self.temperature < 0:
            raise ConfigError(f"temperature must be at least 0, got {self.temperature}")


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled in one turn."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token at the sampling temperature (at temperature 1 when greedy)."""
    text: str
    finish_reason: FinishReason


class SamplerSession(ABC):
    """A batch of growing transcripts. Rows are numbered from 0 in the order of the prompts."""

    @abstractmethod
    def sample(self, rows: Sequence[int], params: SamplingParams) -> list[Completion]:
        """Continues each of `rows` by one completion, which is appended to its transcript."""

    @abstractmethod
    def append(self, row: int, token_ids: Sequence[int]) -> None:
        """Appends an observation to a transcript."""

    @abstractmethod
    def close(self) -> None:
        """Frees the session's memory."""

    def __enter__(self) -> SamplerSession:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class Sampler(ABC):
    """Draws completions from the policy."""

    @abstractmethod
    def connect(self, model: Any, tokenizer: Any) -> None:
        """Sets the policy. Called again after its weights changed, with the same or another model object."""

    @abstractmethod
    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> SamplerSession:
        """Starts a session.

        Args:
            prompts: Token ids, one sequence a row.
            seeds: One a row; a row's draws depend on its seed and on nothing else in the batch.
        """
