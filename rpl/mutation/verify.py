"""The verifier of repairs: the only part of the repair loop that reads gold ids and answers.

A program counts as a repair when it ran to its end, put every gold passage into the context within the token budget,
and does not itself contain what it should have found: an answer or a gold id may stand in a program only where the
question, or a passage fetched before it was used, supplied it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rpl.core.answers import normalize_answer
from rpl.core.evidence import NO_GOLD, evidence_scores
from rpl.core.records import Passage, Question, Trace
from rpl.programs.primitives import PRIMITIVES

Lookup = Callable[[str], Passage]
"""Returns the passage of an id; raises `KeyError` where there is none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the verifier found."""

    ok: bool
    coverage: float
    """Share of gold ids in the context, in [0, 1]. Without gold ids: 1.0 where an answer string was printed."""
    reason: str
    """Empty when `ok`; else the first that applies of `infra`, `no_gold`, `error`, `over_budget`, `missing`, `leak`."""
    silver: bool = False
    """True where there were no gold ids, and printed answer strings were taken for evidence."""


class GoldVerifier:
    """Decides whether an execution is a verified repair.

    Args:
        lookup: Returns a corpus passage by id; the texts of fetched passages are read through it.
    """

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup

    def verify(self, question: Question, trace: Trace, max_printed_tokens: int) -> Verdict:
        """Judges one execution.

        Args:
            question: The train question, with its gold.
            trace: The execution.
            max_printed_tokens: The context budget, the same that the original program had.
        """
        silver = not question.gold_docs
        share = (
            self._silver(question, trace)
            if silver
            else (evidence_scores(trace.printed_ids, question.gold_docs) or NO_GOLD).recall
        )
        reason = ""
        if trace.infra_error is not None:
            reason = "infra"
        elif silver and not _searchable(question.answers):
            reason = "no_gold"
        elif trace.error is not None:
            reason = "error"
        elif trace.printed_tokens > max_printed_tokens:
            reason = "over_budget"
        elif share < 1.0:
            reason = "missing"
        elif leaks(trace.source, question, trace, self.lookup):
            reason = "leak"
        return Verdict(ok=not reason, coverage=share, reason=reason, silver=silver)

    def leaks(self, program: str, question: Question, trace: Trace) -> tuple[str, ...]:
        """Returns the gold aliases that the program must have got from the gold; see `leaks`."""
        return leaks(program, question, trace, self.lookup)

    def _silver(self, question: Question, trace: Trace) -> float:
        answers = _searchable(question.answers)
        texts = (_padded(_text(self.lookup(i))) for i in trace.printed_ids)
        return float(any(answer in text for text in texts for answer in answers)) if answers else 0.0


def leaks(program: str, question: Question, trace: Trace, lookup: Lookup) -> tuple[str, ...]:
    """Returns the gold aliases a program contains without having been able to know them.

    Aliases are the answers and the gold ids. One may occur in a string literal only if it occurs in the question or
    in a passage that the program fetched; and in the arguments of a call (so also when the text was put together at
    run time) only if it occurs in the question or in a passage fetched *before* that call. Numbers that are not in a
    string (`k=3`) are no aliases, nor are "yes" and "no". Titles are none either: `Borders of Chad` may be named by
    analogy with a page that was seen, and mutations have no access to gold titles.

    Args:
        program: Program text that parses.
        question: With its gold.
        trace: An execution of the program for this question.
        lookup: Returns a corpus passage by id.

    Returns:
        The offending aliases, normalised, without repeats; empty when there is no leak.
    """
    asked = _padded(question.question)
    aliases = [a for a in _searchable((*question.answers, *question.gold_docs)) if a not in asked]
    gold = set(question.gold_docs)
    found: dict[str, None] = {}
    seen_ids: dict[str, None] = {}
    for call in trace.calls:
        primitive = PRIMITIVES[call.name]
        query = _padded(" ".join(str(call.args.get(name, "")) for name in primitive.named("query")))
        for alias in aliases:
            if alias in query and not _occurs(alias, seen_ids, lookup):
                found[alias.strip()] = None
        for name in primitive.named("passage"):
            wanted = call.args.get(name)
            if wanted in gold and wanted not in seen_ids and str(wanted) not in question.question:
                found[str(wanted)] = None
        seen_ids.update(dict.fromkeys(call.result_ids))
    literals = [_padded(literal) for literal in _literals(program)]
    for alias in aliases:
        if any(alias in literal for literal in literals) and not _occurs(alias, seen_ids, lookup):
            found[alias.strip()] = None
    return tuple(found)


def _searchable(texts: Iterable[str]) -> list[str]:
    # "yes" and "no" stand in half of all passages and queries: they prove nothing.
    padded = dict.fromkeys(map(_padded, texts))
    return [text for text in padded if text.strip() not in ("", "yes", "no")]


def _literals(program: str) -> Iterable[str]:
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _occurs(alias: str, ids: Iterable[str], lookup: Lookup) -> bool:
    return any(alias in _padded(f"{i} {_text(lookup(i))}") for i in ids)


def _text(passage: Passage) -> str:
    return f"{passage.title} {passage.text}"


def _padded(text: str) -> str:
    # Whole words only: " oslo " is not in " oslofjord ".
    return f" {normalize_answer(text)} "
