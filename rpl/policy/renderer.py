r"""Text to token ids and back: the one renderer of SFT, RL, evaluation and serving.

A transcript is a prompt followed by segments, each tokenised by itself, so that it only ever grows at its end:

    prompt | <program>…</program> | \n<result>…</result>\n | … | <answer>…</answer> eos
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rpl.core.encoding import TextEncoder, name_of
from rpl.core.errors import ConfigError
from rpl.core.files import digest
from rpl.core.records import FinishReason
from rpl.core.tags import ANSWER_PREFIX, answer_text, defuse, has_result_tag, program_text, read_action, result_text
from rpl.policy.prompts import DIRECT, Style, user_message
from rpl.policy.template import read_template

_PROBE = "for p in bm25('Owl', k=2):\n    if 'a' in p.text:\n        print(p.title)"
"""What every policy must be able to write: several lines, indented, with capitals and signs."""


@dataclass(frozen=True, slots=True)
class Action:
    """What one turn of the policy asks for."""

    kind: Literal["program", "answer", "invalid"]
    text: str = ""
    """The program or the answer; empty if invalid."""
    reason: str | None = None
    """Why it is invalid: `forgery`, `truncated`, `no_action` or `preamble`."""


class Renderer:
    """Renders questions, programs, observations and answers for one tokenizer.

    Args:
        tokenizer: A fast tokenizer with a chat template and an end token.
        style: `compact`: a prompt of about thirty tokens, for small models that learn the language by training.
            `documented`: the language described in full with an example, for models that write it unprompted.
        thinking: Whether the policy may write plain text before a tag. If not, such a turn is invalid.

    Raises:
        ConfigError: The style is unknown, the tokenizer is not a fast one or has no end token, it loses line breaks,
            spaces or capitals of programs, or its chat template is missing or cannot be used; see `read_template`.
    """

    def __init__(self, tokenizer: Any, style: Style = "compact", thinking: bool = True) -> None:
        if style not in ("compact", "documented"):
            raise ConfigError(f"style {style!r}: allowed are 'compact' and 'documented'")
        self.template = read_template(tokenizer)
        if tokenizer.eos_token_id is None:
            raise ConfigError(f"the tokenizer {name_of(tokenizer)} has no end-of-sequence token; a policy needs one")
        self.tokenizer = tokenizer
        self.style = style
        self.thinking = thinking
        self._encoder = TextEncoder(tokenizer, self.template.markers)
        self.encode = self._encoder.encode
        """Text to ids, none of them of a control token; may be called from several threads."""
        self._head, self._tail = (
            tokenizer.encode(text, add_special_tokens=False) for text in (self.template.head, self.template.tail)
        )
        self._message = user_message(style, thinking)
        if not self.writable(_PROBE):
            read = tokenizer.decode(self.program_ids(_PROBE), skip_special_tokens=False)
            raise ConfigError(
                f"the tokenizer {name_of(tokenizer)} cannot write programs: line breaks, spaces, capitals or "
                f"signs get lost, as in {read!r}"
            )

    # -- prompts -------------------------------------------------------------------------------------------------

    def prompt_ids(self, question: str) -> list[int]:
        """Returns the prompt: one user message in the chat template, ready for the policy's turn."""
        return self._fill(self._message, question)

    def direct_prompt_ids(self, question: str) -> list[int]:
        """Returns a prompt without retrieval: the chat template asks for the answer, `<answer>` is already written."""
        return self._fill(DIRECT, question) + self.encode(ANSWER_PREFIX)

    def prefilled_ids(self, question: str, program: str, observation: str, answer: bool = False) -> list[int]:
        """Returns the transcript in which the policy has already run a given program.

        A fixed program is so compared with the policy's own on the same weights, the same reader and the same layout.

        Args:
            question: The question text.
            program: The source of the program.
            observation: What it printed.
            answer: Whether `<answer>` is written too, so that the next turn must be an answer.
        """
        ids = self.prompt_ids(question) + self.program_ids(program) + self.observation_ids(observation)
        return ids + self.encode(ANSWER_PREFIX) if answer else ids

    # -- segments ------------------------------------------------------------------------------------------------

    def program_ids(self, source: str) -> list[int]:
        """Returns the segment in which the policy writes a program."""
        return self.encode(program_text(source))

    def observation_ids(self, observation: str) -> list[int]:
        """Returns the segment in which the environment shows what a program printed.

        Text in it that looks like one of the tags is written with square brackets, and text that looks like a control
        token is tokenised as plain characters, so that a passage cannot end its own block.
        """
        return self.encode(result_text(self._outside(observation)))

    def answer_ids(self, answer: str, eos: bool = True) -> list[int]:
        """Returns the segment in which the policy answers, by default with the end token."""
        ids = self.encode(answer_text(answer))
        return [*ids, self.tokenizer.eos_token_id] if eos else ids

    def transcript(
        self, question: str, steps: Sequence[tuple[str, str]], answer: str | None, eos: bool = True
    ) -> tuple[list[int], list[bool]]:
        """Returns a whole transcript for supervised training.

        Args:
            question: The question text.
            steps: Pairs of program source and observation.
            answer: The answer; `None` leaves the transcript open after the last observation.
            eos: Whether the end token follows the answer (and is trained). Sampling stops at `</answer>`, so a
                rollout has none.

        Returns:
            Token ids, and a mask that is True where the policy writes: programs, answer and end token.
        """
        ids = self.prompt_ids(question)
        mask = [False] * len(ids)
        for program, observation in steps:
            for segment, trained in ((self.program_ids(program), True), (self.observation_ids(observation), False)):
                ids += segment
                mask += [trained] * len(segment)
        if answer is not None:
            segment = self.answer_ids(answer, eos)
            ids += segment
            mask += [True] * len(segment)
        return ids, mask

    # -- reading -------------------------------------------------------------------------------------------------

    def parse(self, text: str, finish_reason: FinishReason = "eos") -> Action:
        """Reads what the policy wrote in one turn; the first complete tag counts.

        Args:
            text: The text of the turn, special tokens visible, a final end token removed.
            finish_reason: Why sampling ended; `length` without a tag means the turn was cut off.
        """
        if has_result_tag(text) or any(marker in text for marker in self.template.markers):
            return Action("invalid", reason="forgery")
        if (action := read_action(text)) is None:
            return Action("invalid", reason="truncated" if finish_reason == "length" else "no_action")
        kind, body, before = action
        if not self.thinking and before.strip():
            return Action("invalid", reason="preamble")
        if kind == "program":
            return Action("program", body)
        return Action("answer", body) if body else Action("invalid", reason="no_action")

    def writable(self, program: str) -> bool:
        """Returns whether a program, written as a turn of the policy and read again, is the same program."""
        return self._reads_back(self.program_ids(program), Action("program", program))

    def answer_writable(self, answer: str) -> bool:
        """Returns whether an answer, written as a turn of the policy and read again, is the same answer."""
        return self._reads_back(self.answer_ids(answer, eos=False), Action("answer", answer))

    @staticmethod
    def direct_answer(text: str) -> str:
        """Reads the continuation of a prompt that already holds `<answer>`: up to the closing tag or the line's end."""
        return text.split("</answer>")[0].strip().split("\n")[0].strip()

    def count_tokens(self, text: str) -> int:
        """Returns the length of a text in tokens; control tokens in it count as plain characters."""
        return len(self.encode(text))

    @cached_property
    def style_hash(self) -> str:
        """A fingerprint of everything that shapes a transcript; equal hashes render equal ids.

        A model trained under one hash and run under another sees prompts it was not trained on.
        """
        ids, mask = self.transcript("Who wrote it?", [("print(1)", "[p1] A: b"), ("print(2)", "")], "nobody")
        probe = json.dumps([ids, [int(m) for m in mask], self.direct_prompt_ids("Who?")])
        return digest(self.style, str(self.thinking), probe)

    # -- inside --------------------------------------------------------------------------------------------------

    def _fill(self, message: str, question: str) -> list[int]:
        before, after = message.split("{question}")
        return [*self._head, *self.encode(before + self._outside(question.strip()) + after), *self._tail]

    def _outside(self, text: str) -> str:
        return self._encoder.outside(text, defuse)

    def _reads_back(self, ids: list[int], action: Action) -> bool:
        text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return self.parse(text) == action
