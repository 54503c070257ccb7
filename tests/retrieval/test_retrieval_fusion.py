import subprocess
import sys

import pytest

from rpl.core.errors import PrimitiveError
from rpl.core.records import Passage
from rpl.retrieval.fusion import reciprocal_rank_fusion, unique

A, B, C, D = (Passage(i, i.upper(), f"text {i}", score=9.0, rank=7) for i in "abcd")


def test_numbers_by_hand():
    fused = reciprocal_rank_fusion([[A, B, C], [C, A, D]])
    assert [p.id for p in fused] == ["a", "c", "b", "d"]
    assert [p.score for p in fused] == pytest.approx([1 / 61 + 1 / 62, 1 / 63 + 1 / 61, 1 / 62, 1 / 63], abs=1e-15)
    assert [p.rank for p in fused] == [0, 1, 2, 3]


def test_ties_keep_first_appearance():
    assert [p.id for p in reciprocal_rank_fusion([[B, A], [A, B]])] == ["b", "a"]
    assert [p.id for p in reciprocal_rank_fusion([[D], [A], [C]])] == ["d", "a", "c"]


def test_k_cuts_and_k0_dampens():
    assert [p.id for p in reciprocal_rank_fusion([[A, B], [B, C]], k=1)] == ["b"]
    assert reciprocal_rank_fusion([[A]], k0=0)[0].score == 1.0


def test_a_repeat_in_one_list_counts_once():
    assert [(p.id, p.score) for p in reciprocal_rank_fusion([[A, A, B]])] == [("a", 1 / 61), ("b", 1 / 62)]


def test_empty():
    assert reciprocal_rank_fusion([]) == []
    assert reciprocal_rank_fusion([[], [A]]) == reciprocal_rank_fusion([[A]])


@pytest.mark.parametrize("k", [0, -1, 1.5, "3", True])
def test_bad_k(k):
    with pytest.raises(PrimitiveError, match="k must be a whole number"):
        reciprocal_rank_fusion([[A]], k=k)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([A], "list 1 must be a list of passages, got Passage"),
        ([[A], ["x"]], "list 2 must hold passages only, got str"),
    ],
)
def test_bad_lists(lists, message):
    with pytest.raises(PrimitiveError, match=message):
        reciprocal_rank_fusion(lists)


def test_unique_keeps_the_first_unchanged():
    again = Passage("a", "other", "other")
    assert unique([B, A, again, B]) == [B, A]
    assert unique([]) == []
    with pytest.raises(PrimitiveError, match="unique must be a list of passages, got str"):
        unique("abc")


def test_imports_nothing_heavy():
    code = "import sys, rpl.retrieval.fusion; print({'numpy', 'torch', 'faiss', 'bm25s'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_the_library_module_imports_nothing_heavy():
    code = "import sys, rpl.retrieval.library.library; print({'numpy', 'torch', 'faiss', 'bm25s'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
