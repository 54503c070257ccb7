"""Which candidates become questions, and in which order: balanced over relations and countries, without randomness."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rpl.atlas.questions import Candidate
from rpl.atlas.splits import SPLITS, Split
from rpl.core.files import digest
from rpl.core.records import Question

Quotas = Mapping[Split, Mapping[str, int]]

FULL: Quotas = {
    "train": {"one_hop": 400, "two_hop": 500, "comparison": 250, "loop": 190, "corpus": 260},
    "val": {"one_hop": 25, "two_hop": 31, "comparison": 16, "loop": 12, "corpus": 16},
    "test": {"one_hop": 80, "two_hop": 100, "comparison": 50, "loop": 40, "corpus": 50},
}

MINI: Quotas = {
    "train": {"one_hop": 15, "two_hop": 19, "comparison": 9, "loop": 8, "corpus": 9},
    "val": {"one_hop": 5, "two_hop": 6, "comparison": 3, "loop": 3, "corpus": 3},
    "test": {"one_hop": 5, "two_hop": 6, "comparison": 3, "loop": 3, "corpus": 3},
}


def select(candidates: Mapping[str, Sequence[Candidate]], quotas: Quotas) -> list[Question]:
    """Picks the questions of all splits.

    Args:
        candidates: All candidates by kind.
        quotas: How many questions a split and kind at most.

    Returns:
        Train, then val, then test. Within a split the kinds are interleaved, and within a kind its relations, so that
        the first n questions of a split have the mix of the whole.
    """
    questions: list[Question] = []
    for split in SPLITS:
        placed: list[tuple[float, int, Question]] = []
        for rank, (kind, wanted) in enumerate(quotas[split].items()):
            chosen = _balanced([c for c in candidates[kind] if c.question.split == split])[:wanted]
            placed += [
                ((index + 0.5) / len(chosen), rank, replace(c.question, type=kind)) for index, c in enumerate(chosen)
            ]
        questions += [question for _, _, question in sorted(placed, key=lambda item: item[:2])]
    return questions


def _balanced(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Orders candidates so that any prefix has about as many of each relation and, within one, of each country."""
    by_relation: dict[str, list[Candidate]] = defaultdict(list)
    seen: dict[tuple[str, str], int] = defaultdict(int)
    for candidate in sorted(candidates, key=_hash):
        by_relation[candidate.relation].append(candidate)
    ranked: list[tuple[int, str, Candidate]] = []
    for relation, members in by_relation.items():
        keyed: list[tuple[int, Candidate]] = []
        for candidate in members:
            keyed.append((seen[relation, candidate.country], candidate))
            seen[relation, candidate.country] += 1
        keyed.sort(key=lambda item: item[0])
        ranked += [(index, digest("atlas-relation", relation, str(index)), c) for index, (_, c) in enumerate(keyed)]
    return [candidate for _, _, candidate in sorted(ranked, key=lambda item: item[:2])]


def _hash(candidate: Candidate) -> str:
    return digest("atlas-question", candidate.question.id)
