"""The interface of sampling: token ids in, token ids out; transcripts come, grow and go while others are decoded.

A session is driven by one caller, in this order for each transcript: `add`, then `submit`, then `advance` until its
completion comes back, then either `append` and `submit` again, or `drop`. What is asked for meanwhile joins the batch
at the next `advance`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rpl.core.errors import ConfigError
from rpl.core.records import FinishReason


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
    """The decoded tokens; an end token that ended the completion is left out."""
    finish_reason: FinishReason
    """`stop` (a stop text), `eos` (an end token) or `length`."""


class SamplerSession(ABC):
    """Growing transcripts under one version of the weights, those that the model had when the session was opened.

    Each transcript is a row. A row has a state of its own (keys and values, an entry of a prefix cache) from its first
    completion until it is dropped, so the caller bounds memory by the number of rows that it keeps. Not thread-safe.
    """

    prefilled_tokens: int = 0
    """Tokens of prompts, observations and earlier completions that were run so far, other than one by one in decoding;
    fewer than the transcripts have where work is shared."""

    @abstractmethod
    def add(self, prompt: Sequence[int], seed: int) -> int:
        """Starts a transcript.

        Rows with equal prompts share the work of running it while one of them, or what it left, is in memory.

        Args:
            prompt: Token ids, at least one.
            seed: The row's draws depend on it and on nothing else in the batch; the n-th token drawn in a row uses the
                n-th number of the seed's stream, over all turns.

        Returns:
            Its row number: 0, 1, 2, … in the order of the calls; numbers are not used again.

        Raises:
            ConfigError: The prompt is empty, or the session is closed.
        """

    @abstractmethod
    def append(self, row: int, token_ids: Sequence[int]) -> None:
        """Appends an observation, which may be empty, to a transcript.

        Raises:
            ConfigError: A completion of this row is being drawn, the row is unknown or dropped, or the session is
                closed.
        """

    @abstractmethod
    def submit(self, row: int, params: SamplingParams) -> None:
        """Asks for one completion of a transcript. Rows may ask with different parameters.

        Raises:
            ConfigError: As for `append`.
        """

    @abstractmethod
    def advance(self) -> list[tuple[int, Completion]]:
        """Decodes for a while.

        Returns:
            The completions that were finished, each with its row, in an order that is the same for equal calls. Their
            tokens are part of the transcripts now. Empty if none was finished yet; empty at once if none is asked for.

        Raises:
            ConfigError: The session is closed.
        """

    @abstractmethod
    def drop(self, row: int) -> None:
        """Ends a transcript and frees its state; a completion that is being drawn is given up.

        Raises:
            ConfigError: The row is unknown or dropped, or the session is closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the session's memory; may be called twice."""

    def __enter__(self) -> SamplerSession:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class Sampler(ABC):
    """Draws completions from the policy."""

    last_sync_s: float = 0.0
    """Seconds that the latest `connect` took to bring the weights to a copy of the policy, if there is one."""
    max_positions: int | None = None
    """Longest transcript that the connected model reads, in tokens; `None` where the sampler checks that itself."""
    runs_model: bool = True
    """Whether sessions run the model that was connected. If not, a sharded one need not be gathered for them."""

    @abstractmethod
    def connect(self, model: Any, tokenizer: Any) -> None:
        """Sets the policy. Called again after its weights changed, with the same or another model object.

        A sampler that keeps weights elsewhere (an engine, a server) brings them up to date here.
        """

    @abstractmethod
    def open(self) -> SamplerSession:
        """Starts a session without transcripts.

        Raises:
            ConfigError: No policy is connected.
        """
