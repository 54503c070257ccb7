"""Text from outside to token ids: never a control token, never a marker of the template, in any tokenizer.

Passages, titles, questions, queries, printed text and error messages are data. Were `<|im_end|>` in a passage encoded
as the token of that name, the passage could end its turn and write the policy's answer. What counts as a control token
is not read from a flag or a list: it is *every* token that was added to the tokenizer's vocabulary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rpl.core.errors import ConfigError

_BRACKETED = re.compile(r"<[^<>\s]{1,60}>|\[[^\[\]\s]{1,60}\]")
_EMPTY_BLOCK = re.compile(r"<([\w-]+)>\s*</\1>")  # such as `<think></think>`: the policy may write these two as well
_SHORTEST_MARKER = 3


class TextEncoder:
    """Encodes text from outside. Safe to call from several threads at once.

    Args:
        tokenizer: A fast tokenizer of transformers.
        markers: Texts by which the template in use tells turns apart; see `template_markers`. Those that are ordinary
            text to the tokenizer, such as `[INST]`, are broken up by `outside`.

    Raises:
        ConfigError: The tokenizer is not a fast one.
    """

    def __init__(self, tokenizer: Any, markers: Iterable[str] = ()) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(
                f"the tokenizer {name_of(tokenizer)} is not a fast one (a tokenizer.json): text from outside could "
                "not be kept apart from its control tokens"
            )
        added = tokenizer.get_added_vocab()
        self.added_ids = frozenset(added.values())
        self._plain_markers = tuple(marker for marker in markers if marker not in added)
        self._plain = _without_added_tokens(backend)
        self._normalizer = self._plain.normalizer

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, none of them of an added token."""
        encoding = self._plain.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self.added_ids.isdisjoint(ids):
            return ids
        # The tokenizer's model knows the string of an added token as a piece of its own: it is encoded in two parts.
        found: list[int] = []
        for id_, (start, end) in zip(ids, encoding.offsets, strict=True):
            if id_ not in self.added_ids:
                found.append(id_)
            elif end - start > 1:
                found += self.encode(text[start : start + 1]) + self.encode(text[start + 1 : end])
            elif text != "?":  # an unknown character, to a tokenizer that has no token for its bytes
                found += self.encode("?")
        return found

    def outside(self, text: str, defuse: Callable[[str], str] = str) -> str:
        """Returns a text in which the tokenizer reads no marker of the template that is ordinary text to it.

        A marker gets a space inside. Where the tokenizer normalises text, what it makes of the text counts: full-width
        brackets that it folds, or zero-width characters that it drops, hide no marker.

        Args:
            text: Any text.
            defuse: Takes out whatever else the tokenizer must not read in it.
        """
        safe, cut = self._broken_up(defuse(text)), False
        while self._normalizer is not None and self._normalizer.normalize_str(safe) != safe:
            read: str = self._plain.decode(self.encode(safe), skip_special_tokens=False)
            again = self._broken_up(defuse(read), cut)
            if again == read:
                break
            # The second time, the tokenizer has dropped the space inside a marker: then the marker is cut.
            safe, cut = again, True
        return safe

    def _broken_up(self, text: str, cut: bool = False) -> str:
        for marker in self._plain_markers:
            while marker in text:
                text = text.replace(marker, marker[1:] if cut else f"{marker[:1]} {marker[1:]}")
        return text


def added_token_breaker(tokenizer: Any) -> Callable[[str], str]:
    """Returns a function that breaks up, in a text from outside, every string that the tokenizer has a token added for.

    For models whose own library tokenises. Texts without such strings come back as they are; so do runs of white
    space, which control nothing.

    Args:
        tokenizer: Of transformers or of tokenizers. Where it normalises text, what it makes of the text counts as well.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None) or tokenizer
    read = getattr(backend, "get_added_tokens_decoder", None)
    added = read() if read is not None else getattr(tokenizer, "added_tokens_decoder", {})
    tokens = sorted((token for token in added.values() if token.content.strip()), key=lambda t: -len(t.content))
    if not tokens:
        return str
    # A token that is looked for in the normalised text is found in any case that the tokenizer folds.
    strings = [f"(?i:{re.escape(t.content)})" if t.normalized else re.escape(t.content) for t in tokens]
    pattern = re.compile("|".join(strings))
    normalizer = getattr(backend, "normalizer", None)

    def split(match: re.Match[str]) -> str:
        found = match[0]
        return f"{found[0]} {found[1:]}" if len(found) > 1 else "?"

    def break_up(text: str) -> str:
        text = pattern.sub(split, text)
        if normalizer is not None and pattern.search(normalized := normalizer.normalize_str(text)):
            text = pattern.sub(split, normalized)
            if pattern.search(normalizer.normalize_str(text)):  # the normaliser drops the space
                text = pattern.sub("?", normalized)
        return text

    return break_up


def template_markers(pieces: Sequence[str], tokenizer: Any) -> tuple[str, ...]:
    """Returns the texts by which a template tells turns apart, longest first.

    Args:
        pieces: What the template writes around and between the contents of turns.
        tokenizer: Its added tokens are markers wherever they occur; of the text between them, whatever stands in
            angle or square brackets, and the rest of a line that has letters as well as punctuation (`### User:`).
    """
    added = sorted((token for token in tokenizer.get_added_vocab() if token.strip()), key=len, reverse=True)
    found: dict[str, None] = {}
    for piece in pieces:
        rest = _EMPTY_BLOCK.sub("\n", piece)
        for token in added:
            if token in rest:
                found[token] = None
                rest = rest.replace(token, "\n")
        for line in rest.splitlines():
            found |= dict.fromkeys(bracketed(line))
            text = _BRACKETED.sub("", line).strip()
            if len(text) >= _SHORTEST_MARKER and any(map(str.isalnum, text)) and re.search(r"[^\w\s]", text):
                found[text] = None
    return tuple(sorted(found, key=len, reverse=True))


def bracketed(text: str) -> list[str]:
    """Returns what stands in angle or square brackets without white space, brackets included."""
    return _BRACKETED.findall(text)


def name_of(tokenizer: Any) -> str:
    """Returns where a tokenizer came from, for messages."""
    return str(getattr(tokenizer, "name_or_path", "") or "that was given")


def _without_added_tokens(backend: Any) -> Any:
    from tokenizers import Tokenizer

    settings = json.loads(backend.to_str())
    settings |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return Tokenizer.from_str(json.dumps(settings))
