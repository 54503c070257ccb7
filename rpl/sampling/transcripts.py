"""The part that all samplers' sessions share: they keep transcripts and decide where a completion ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rpl.core.errors import ConfigError
from rpl.core.records import FinishReason
from rpl.sampling.sampler import Completion, SamplerSession, SamplingParams
from rpl.sampling.stopping import StopDetector


class Draft:
    """A completion in the making: decides where it ends, so that all engines and samplers end at the same token.

    Args:
        params: How it is drawn.
        detector: Of the stop texts in `params`.
        end_tokens: Ids that end a completion.
    """

    def __init__(self, params: SamplingParams, detector: StopDetector, end_tokens: frozenset[int]) -> None:
        self.params, self._detector, self._end_tokens = params, detector, end_tokens
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.reason: FinishReason | None = None

    def feed(self, token: int, logprob: float) -> bool:
        """Adds a token and returns whether it was the last."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self._end_tokens:
            self.reason = "eos"
        elif self._detector.completed(self.ids):
            self.reason = "stop"
        elif len(self.ids) == self.params.max_new_tokens:
            self.reason = "length"
        return self.reason is not None

    def completion(self, tokenizer: Any) -> Completion:
        """Returns the finished completion; its text is without the token that ended it, if that is an end token."""
        assert self.reason is not None
        shown = self.ids[:-1] if self.reason == "eos" else self.ids
        text = tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return Completion(tuple(self.ids), tuple(self.logprobs), text, self.reason)


@dataclass
class Transcript:
    """A row of a session."""

    number: int
    tokens: list[int]
    seed: int
    drawn: int = 0
    """Tokens drawn so far, over all completions."""
    draft: Draft | None = None
    """The completion that is being drawn, if there is one."""


T = TypeVar("T", bound=Transcript)


class TranscriptSession(SamplerSession, Generic[T]):
    """Adds, grows and looks up transcripts, and refuses what a session must refuse.

    Args:
        kind: Class of the rows.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._rows: dict[int, T] = {}
        self._added = 0
        self._closed = False

    def add(self, prompt: Sequence[int], seed: int) -> int:
        """Starts a transcript; see `SamplerSession.add`."""
        self._check_open()
        if not prompt:
            raise ConfigError("every prompt needs at least one token")
        number = self._added
        self._added += 1
        self._rows[number] = self._kind(number, list(prompt), seed)
        return number

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        """Appends an observation to a transcript."""
        self._idle(row).tokens.extend(token_ids)

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("the session is closed")

    def _known(self, row: int) -> T:
        self._check_open()
        if row not in self._rows:
            raise ConfigError(f"row {row} is unknown or was dropped")
        return self._rows[row]

    def _idle(self, row: int) -> T:
        known = self._known(row)
        if known.draft is not None:
            raise ConfigError(f"row {row}: its completion is not finished yet")
        return known
