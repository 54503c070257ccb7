"""Notices the token that completes a stop text, whatever the token boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class StopDetector:
    """Watches growing completions for stop texts.

    Args:
        tokenizer: Decodes token ids.
        stops: The texts; a completion ends with the token in which the last character of one of them lies.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        # U+FFFD: a token that is part of a character decodes to it and may complete any.
        self._last = ("\ufffd", *{stop[-1] for stop in stops if stop})
        self._window = max((len(stop.encode()) for stop in stops), default=0) + 4
        self._may_end: dict[int, bool] = {}

    def completed(self, ids: Sequence[int]) -> bool:
        """Returns whether a stop text ends in the last token of a completion.

        Args:
            ids: The completion so far; asked after every token, so earlier tokens completed nothing.
        """
        token = ids[-1]
        may_end = self._may_end.get(token)
        if may_end is None:
            text = self._decode([token])
            may_end = self._may_end[token] = any(character in text for character in self._last)
        if not may_end:
            return False
        # A token is at least one byte, so this many tokens hold the longest stop text.
        tail = self._decode(ids[-self._window :])
        return any(stop in tail for stop in self._stops)

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Returns the ids that end a completion: the tokenizer's, and those of the model's generation settings."""
    ids = {tokenizer.eos_token_id}
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids.update(configured if isinstance(configured, list) else [configured])
    return frozenset(token for token in ids if token is not None)
