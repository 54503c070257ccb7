"""What a chat template writes around a user's message, and the markers by which it tells turns apart.

The template is asked, not looked up: it is applied to sentinels, and what it writes around them is what every prompt
gets. A template that cannot frame one message of plain text is refused, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rpl.core.encoding import bracketed, name_of, template_markers
from rpl.core.errors import ConfigError
from rpl.core.files import digest

SYSTEM = "You are a helpful assistant."
"""The system message for templates that do not work without one."""

_SENTINELS = tuple(f"\ue000{name} <\u00e9 & \"T'> \ue001" for name in ("One", "Two", "Three", "Four"))
"""Private-use characters tell them apart; what stands between is what a template might escape or alter."""
# Templates of the ChatML family put a default system turn before the first user turn; it would cost more tokens than
# the whole prompt, and ChatML is as valid without it.
_DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system\n.*?<\|im_end\|>\n(?=<\|im_start\|>user\n)", re.DOTALL)

# A prompt must not change from one day to the next.
_NO_CLOCK = "{%- macro strftime_now(format) -%}{{ '26 Jul 2024' if 'b' in format else '2024-07-26' }}{%- endmacro -%}"

Render = Callable[..., str]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """One turn of the user, opened and closed, and the policy's turn opened."""

    head: str
    """Text before the user's message."""
    tail: str
    """Text after it, up to where the policy writes."""
    markers: tuple[str, ...]
    """Texts that separate turns: the policy must not write them, and text from outside may not hold them."""

    @property
    def digest(self) -> str:
        """A fingerprint; equal ones frame a message equally."""
        return digest(self.head, self.tail, *self.markers)


def read_template(tokenizer: Any) -> ChatTemplate:
    """Learns how a tokenizer's chat template frames a message.

    Raises:
        ConfigError: There is no template, it is broken, it does not work for a single message even with a system
            message, or it writes the content altered, more than once, not at all, or only from a list of parts.
    """
    name = f"the chat template of the tokenizer {name_of(tokenizer)}"
    if not tokenizer.chat_template:
        raise ConfigError(f"the tokenizer {name_of(tokenizer)} has no chat template; a policy needs one")

    template = tokenizer.chat_template
    if isinstance(template, str) and "strftime_now" in template:
        template = _NO_CLOCK + template

    def render(*turns: tuple[str, Any], opened: bool = True) -> str:
        text: str = tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in turns],
            tokenize=False,
            add_generation_prompt=opened,
            chat_template=template,
        )
        return text

    one = _SENTINELS[0]
    system: tuple[tuple[str, str], ...] = ()
    try:
        rendered = render(("user", one))
    except Exception as error:  # jinja's own classes, and whatever a template's filters raise
        system = (("system", SYSTEM),)
        try:
            rendered = render(*system, ("user", one))
        except Exception:
            raise ConfigError(f"{name} does not work: {type(error).__name__}: {_line(error)}") from error
    if wrong := _fault(rendered, one, lambda content: render(*system, ("user", content))):
        raise ConfigError(f"{name} {wrong}; a policy needs one that writes the text of a message once, as it is")
    head, tail = rendered.split(one)
    if not system:
        head = _DEFAULT_SYSTEM.sub("", head)
    return ChatTemplate(head, tail, _markers(tokenizer, render, system, (head, tail)))


def _fault(rendered: str, sentinel: str, render: Render) -> str | None:
    count = rendered.count(sentinel[0])
    if count == 1:
        return None if sentinel in rendered else "alters the content of a message"
    if count > 1:
        return f"writes the content of a message {count} times"
    try:
        in_parts = render([{"type": "text", "text": sentinel}])
    except Exception:  # as above; then it is no template for parts either
        in_parts = ""
    if sentinel[0] in in_parts:
        return "reads the content of a message from a list of parts"
    return "does not write the content of a message"


def _markers(
    tokenizer: Any, render: Render, system: Sequence[tuple[str, str]], frame: Sequence[str]
) -> tuple[str, ...]:
    """Learns the markers from dialogues, where each kind of turn begins and ends; from one turn if it must."""
    one, two, three, four = _SENTINELS
    added = [token for token in tokenizer.get_added_vocab() if token.strip()]
    told, turns = ("system", four), [("user", one), ("assistant", two), ("user", three)]
    pieces: list[str] = []
    for dialogue in ([*system, *turns], [told, *turns], [*system, *turns[:2], ("tool", three)]):
        try:
            text = render(*dialogue, opened=False)
        except Exception:  # the template knows no dialogues, or no such role
            continue
        before, *rest = re.split("|".join(map(re.escape, _SENTINELS)), text)
        # The first piece may hold a default system message: its control tokens count, its words do not.
        names = [token for token in added if token in before] + (bracketed(before) if told in dialogue else [])
        pieces += ["\n".join(names), *rest]
    ends = [token for token in (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) if token]
    found = template_markers(pieces or frame, tokenizer)
    return tuple(sorted(dict.fromkeys((*found, *ends)), key=len, reverse=True))


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or "no message"
