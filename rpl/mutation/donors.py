"""Collects the material that mutations may put into a program: query texts, filter constants, sibling programs.

Answer-blind: everything comes from the question, from passages that were retrieved for it, and from programs that
were written for it. Gold ids and answers have no way in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rpl.core.records import Passage
from rpl.programs.grammar import Program


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MAX_QUERIES = 48
MAX_CONSTANTS = 16
MAX_WORDS = 8
MAX_HEADS = 4
MAX_DONOR_CHARS = 100

_PER_PASSAGE = 4
_MAX_PASSAGES = 12
_CONNECTORS = _words("of the de da do dos du del della di la le les el al bin ibn van von der den and")
_QUESTION_WORDS = _words(
    "what which who whom whose when where why how is are was were do does did has have had can could in on at of "
    "by for from to with between among if and or the a an list name give tell find count are there that this "
    "it its according after before during both"
)
_STOP_WORDS = _QUESTION_WORDS | _words(
    "be been being as than then these those their his her he she they them i you we my your our not no any all "
    "each every some most more less least many much very so such same other another into over under about out up "
    "down would should will shall may might must also only just lies lie located called named known used following "
    "me one ones whether while because us"
)
_HEAD = re.compile(r"([A-Z][^\W\d_]+(?: [^\W\d_]+)? (?:of|in|by)) [A-Z]")
_WORD = re.compile(r"[^\W_](?:[\w.&’'-]*[^\W_])?")
_QUOTED = re.compile(r"\"([^\"]{2,})\"|“([^”]{2,})”|«([^»]{2,})»|(?<!\w)'([^']{2,})'(?!\w)|‘([^’]{2,})’")


@dataclass(frozen=True)
class Donors:
    """What mutations may insert; every tuple is in order of promise and free of repeats."""

    queries: tuple[str, ...] = ()
    """Query texts."""
    constants: tuple[str, ...] = ()
    """Texts for filters such as `'Togo' in p.text`."""
    words: tuple[str, ...] = ()
    """Content words of the question, for follow-up queries such as `p.title + ' currency'`."""
    names: tuple[str, ...] = ()
    """Names in the question."""
    heads: tuple[str, ...] = ()
    """What titles of retrieved passages begin with before a name, such as `Borders of`."""
    siblings: tuple[Program, ...] = ()
    """Other programs for the same question, parts of which may be crossed in."""


def collect_donors(question: str, retrieved: Sequence[Passage] = (), siblings: Sequence[Program] = ()) -> Donors:
    """Gathers donors for one question.

    Args:
        question: The question text.
        retrieved: Passages that programs for this question have fetched so far, best first.
        siblings: Other programs that were written for this question.

    Returns:
        At most `MAX_QUERIES` queries, `MAX_CONSTANTS` constants and `MAX_WORDS` words; equal inputs give equal donors.

    >>> collect_donors("What is the currency of Chad?").queries[:3]
    ('Chad', 'currency of Chad', 'Chad currency')
    """
    quoted = [next(filter(None, groups)) for groups in _QUOTED.findall(question)]
    spans = list(dict.fromkeys(quoted + capitalised_spans(question)))
    phrases = noun_phrases(question)
    words = content_words(question)
    titles = [passage.title for passage in retrieved[:_MAX_PASSAGES]]
    texts = [span for p in retrieved[:_MAX_PASSAGES] for span in capitalised_spans(p.text)[:_PER_PASSAGE]]
    literals = [literal for sibling in siblings for literal in string_literals(sibling.tree)]
    of_phrases = [phrase for phrase in phrases if any(span in phrase and span != phrase for span in spans)]
    combined = [f"{span} {word}" for word in words[:4] for span in spans[:3]]
    heads = title_heads(passage.title for passage in retrieved)[:MAX_HEADS]
    analogues = [f"{head} {span}" for head in heads for span in spans[:3]]
    located = [f"in {span}" for span in spans[:3]]
    queries = [*spans, *of_phrases, *analogues, *combined[:6], *literals[:12], *titles, *combined[6:], *phrases, *texts]
    return Donors(
        queries=_distinct(queries, MAX_QUERIES),
        constants=_distinct([*located, *spans, *words, *titles, *texts], MAX_CONSTANTS),
        words=_distinct(words, MAX_WORDS),
        heads=tuple(heads),
        names=_distinct(spans, MAX_WORDS),
        siblings=tuple(dict.fromkeys(siblings)),
    )


def title_heads(titles: Iterable[str]) -> list[str]:
    """Returns what titles begin with before a name, so that the page of another name can be asked for.

    >>> title_heads(["Borders of Chad", "Mali", "History of the Jews"])
    ['Borders of']
    """
    matches = (_HEAD.match(title) for title in titles)
    return list(dict.fromkeys(match.group(1) for match in matches if match is not None))


def capitalised_spans(text: str) -> list[str]:
    """Returns names: runs of capitalised words, lower-case connectors such as `of` allowed between them.

    A leading question word is dropped, an ending `'s` too; `and` joins nothing, because it mostly joins two names.

    >>> capitalised_spans("Which is larger, the Gulf of Guinea or New York City's harbour?")
    ['Gulf of Guinea', 'New York City']
    """
    found: list[str] = []
    for run in _runs(text):
        span: list[str] = []
        pending: list[str] = []
        for word in [*run, ""]:
            if word[:1].isupper() or (span and word[:1].isdigit()):
                if not span and word.lower() in _QUESTION_WORDS:
                    continue
                span += [*pending, word]
                pending = []
                if not word.endswith(("'s", "’s")):
                    continue
            elif span and word in _CONNECTORS and word != "and":
                pending.append(word)
                continue
            if span:
                found.append(_bare(" ".join(span)))
            span, pending = [], []
    return list(dict.fromkeys(found))


def noun_phrases(text: str) -> list[str]:
    """Returns the stretches between stop words, where `of` may join two of them; longest joins first.

    >>> noun_phrases("What is the currency of Chad?")
    ['currency of Chad', 'currency', 'Chad']
    """
    joined: list[str] = []
    plain: list[str] = []
    for run in _runs(text):
        chunks: list[list[str]] = [[]]
        links: list[str] = []  # the stop words between chunks
        for word in run:
            if word.lower() in _STOP_WORDS:
                if chunks[-1]:
                    chunks.append([])
                    links.append("")
                if links:
                    links[-1] = f"{links[-1]} {word}".strip()
            else:
                chunks[-1].append(word)
        names = [_bare(" ".join(chunk)) for chunk in chunks]
        plain += [name for name in names if name]
        for left, link, right in zip(names, links, names[1:], strict=False):
            if left and right and link.split()[0] in ("of", "in", "for") and len(link.split()) <= 2:
                joined.append(f"{left} {link} {right}")
    return list(dict.fromkeys(joined + plain))


def content_words(text: str) -> list[str]:
    """Returns the lower-case words that carry meaning, in order.

    >>> content_words("What is the official currency of Chad?")
    ['official', 'currency']
    """
    words = [word for run in _runs(text) for word in run]
    return list(dict.fromkeys(w for w in words if w.islower() and w not in _STOP_WORDS and len(w) > 2))


def string_literals(tree: ast.AST) -> list[str]:
    """Returns the string literals of a program, in order of the walk."""
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value]


def _runs(text: str) -> list[list[str]]:
    """Words, split where anything but a space stands between them."""
    runs: list[list[str]] = []
    last: re.Match[str] | None = None
    for match in _WORD.finditer(text):
        gap = "" if last is None else text[last.end() : match.start()]
        initial = last is not None and len(last.group()) <= 2  # "St. Louis" and "J. Smith" go on after their stop
        if gap == " " or (gap == ". " and initial):
            runs[-1].append(match.group())
        else:
            runs.append([match.group()])
        last = match
    return runs


def _bare(text: str) -> str:
    return text.removesuffix("'s").removesuffix("’s")


def _distinct(texts: Iterable[str], limit: int) -> tuple[str, ...]:
    kept: dict[str, str] = {}
    for text in texts:
        clean = " ".join(text.split())
        if clean and len(clean) <= MAX_DONOR_CHARS and clean.isprintable() and any(c.isalnum() for c in clean):
            kept.setdefault(clean.casefold(), clean)
    return tuple(kept.values())[:limit]
