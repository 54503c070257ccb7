"""The interface of a vLLM engine, in this process or behind a server."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

from rpl.core.errors import SamplerError
from rpl.sampling.transcripts import Draft

KEY = "model.sampler.init_args"
"""Where the sampler's settings are in a config."""


class Deadline:
    """A time limit over several steps.

    Args:
        seconds: From now on.
        what: Names the work in the error message.
        setting: The setting that holds the limit.
    """

    def __init__(self, seconds: float, what: str, setting: str) -> None:
        self.seconds, self.what, self.setting = seconds, what, setting
        self._end = time.monotonic() + seconds

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._end + self.seconds

    @property
    def remaining(self) -> float:
        """Seconds left, at least a millisecond.

        Raises:
            SamplerError: There are none left.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise self.error()
        return max(left, 1e-3)

    def error(self) -> SamplerError:
        """The error that says that time is up."""
        return SamplerError(f"{self.what} took longer than {self.seconds:g} s ({KEY}.{self.setting})")

    def watch(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Passes weights on while there is time."""
        for item in weights:
            _ = self.remaining
            yield item


@dataclass
class Request:
    """One completion that is asked for."""

    row: int
    prompt: list[int]
    seed: int
    draft: Draft
    end_tokens: list[int] = field(default_factory=list)
    cached: int = 0
    """Tokens of the prompt that the engine's prefix cache held, as far as it tells."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What an engine says about the probe."""

    prompt_logprobs: tuple[float, ...]
    """Of each token of the prompt but the first, at temperature 1."""
    ids: tuple[int, ...]
    """What it sampled after the prompt."""
    logprobs: tuple[float, ...]
    """Of those, at the sampling temperature."""


class Backend(ABC):
    """An engine that holds a copy of the policy's weights."""

    max_model_len: int
    """Longest transcript, completion included, in tokens."""

    @abstractmethod
    def receive(self, weights: Iterable[tuple[str, Tensor]], deadline: Deadline) -> str:
        """Takes in all weights, or puts them where `activate` finds them, and returns where that is.

        Need not go through `weights` to the end where it has no use for them or fails.
        """

    @abstractmethod
    def activate(self, place: str, deadline: Deadline) -> None:
        """Makes the weights that were received those that are sampled from, and forgets every cached key and value.

        Args:
            place: What `receive` returned on rank 0.
            deadline: Of the whole synchronisation.
        """

    def settle(self) -> None:  # noqa: B027 - most have nothing to remove
        """Called when all ranks have activated the weights: what `receive` put somewhere is no longer needed."""

    @abstractmethod
    def probe(self, prompt: list[int], new_tokens: int, temperature: float, seed: int) -> ProbeAnswer:
        """Scores a prompt and samples some tokens after it, whatever they are."""

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Asks for a completion."""

    @abstractmethod
    def advance(self) -> list[Request]:
        """Decodes for a while and returns the requests whose drafts were finished."""

    @abstractmethod
    def cancel(self, row: int) -> None:
        """Gives up a completion that was asked for."""

    def rest(self) -> None:  # noqa: B027 - most have nothing to free
        """Frees what it can until it is used again."""

    @abstractmethod
    def close(self) -> None:
        """Shuts it down."""
