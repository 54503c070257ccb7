"""How answers are compared: normalisation, exact match and token F1. Pure text, standard library only.

The rules are those of SQuAD as the search-agent literature uses them, with two differences. A string that normalisation
would empty ("A", "The", "$") keeps its words, so that such an answer can be right and cannot be matched by
everything. Canonically equivalent Unicode spellings (composed and decomposed accents) count as equal.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED = frozenset({"yes", "no", "noanswer"})


def normalize_answer(text: str) -> str:
    """Lower-cases, deletes ASCII punctuation and the words a, an, the, and collapses white space.

    Where nothing would be left, articles are kept, and then punctuation too.

    >>> normalize_answer("The  Swiss Franc.")
    'swiss franc'
    >>> normalize_answer("66,987,244")
    '66987244'
    >>> normalize_answer("A")
    'a'
    """
    lowered = unicodedata.normalize("NFC", text).lower()
    plain = lowered.translate(_PUNCTUATION)
    for form in (_ARTICLES.sub(" ", plain), plain, lowered):
        if words := form.split():
            return " ".join(words)
    return ""


def exact_match(pred: str | None, answers: Sequence[str]) -> float:
    """Returns 1.0 if the prediction equals any accepted answer after normalisation, else 0.0.

    Args:
        pred: The predicted answer; `None` (no answer was given) scores 0.
        answers: All accepted answers, at least one.

    Raises:
        ValueError: `answers` is empty: such a question cannot be scored.
    """
    _require(answers)
    if pred is None:
        return 0.0
    normal = normalize_answer(pred)
    return float(any(normal != "" and normal == normalize_answer(answer) for answer in answers))


def token_f1(pred: str | None, answers: Sequence[str]) -> float:
    """Returns the F1 of the bags of normalised words, the best over all accepted answers, in [0, 1].

    Where the prediction or the answer is `yes`, `no` or `noanswer`, only equality scores.

    Args:
        pred: The predicted answer; `None` (no answer was given) scores 0.
        answers: All accepted answers, at least one.

    Raises:
        ValueError: `answers` is empty: such a question cannot be scored.

    >>> token_f1("the river Rhône", ["Rhône"])
    0.6666666666666666
    """
    _require(answers)
    if pred is None:
        return 0.0
    normal = normalize_answer(pred)
    return max(_pair_f1(normal, normalize_answer(answer)) for answer in answers)


def _pair_f1(pred: str, answer: str) -> float:
    if pred != answer and (pred in _CLOSED or answer in _CLOSED):
        return 0.0
    words, wanted = Counter(pred.split()), Counter(answer.split())
    common = sum((words & wanted).values())
    if common == 0:
        return 0.0
    return 2 * common / (words.total() + wanted.total())


def _require(answers: Sequence[str]) -> None:
    if isinstance(answers, str):
        raise ValueError(f"answers must be a sequence of strings, got the string {answers!r}")
    if not answers:
        raise ValueError("a question without accepted answers cannot be scored")
