import pytest
from repair_fakes import a_question, a_trace

from rpl.core.records import PrimitiveCall, TraceError
from rpl.mutation.localise import localise

RERANKED = (
    PrimitiveCall("bm25", {"query": "x", "k": 9}, ("city", "land", "other"), line=1),
    PrimitiveCall("rerank", {"query": "x", "passages": ["city", "land", "other"], "k": 1}, ("city",), line=2),
)


@pytest.mark.parametrize(
    ("kind", "trace"),
    [
        ("none", a_trace(printed=("land", "city"))),
        ("never_fetched", a_trace(printed=("city",))),
        ("never_fetched", a_trace(printed=())),
        ("not_printed", a_trace(printed=("city",), fetched=("city", "land"))),
        ("over_budget", a_trace(printed=("city",), fetched=("city", "land"), omitted=1)),
        ("never_fetched", a_trace(printed=("city",), fetched=("city",), omitted=1)),
        ("lost_in_rerank", a_trace(printed=("city",), calls=RERANKED)),
        ("crashed", a_trace(printed=("city",), error=TraceError("runtime", "boom"))),
        ("crashed", a_trace(printed=("city", "land"), error=TraceError("runtime", "boom after printing"))),
    ],
)
def test_each_class_by_construction(kind, trace):
    assert localise(a_question(), trace).kind == kind


def test_the_shares_that_were_fetched_and_printed():
    failure = localise(a_question(), a_trace(printed=("city",), calls=RERANKED))
    assert (failure.fetched, failure.printed, failure.missing) == (1.0, 0.5, ("land",))


def test_the_lines_by_which_the_evidence_can_be_had():
    def lines(**changes):
        return localise(a_question(), a_trace(**changes)).lines

    search, rerank = RERANKED
    assert lines(printed=("city",), calls=RERANKED) == (2,), "the call that dropped it"
    assert lines(printed=(), calls=RERANKED) == (2,), "the last that returned one, and the one that dropped the other"
    assert lines(printed=("city",), calls=(search,)) == (1,), "fetched and not printed"
    hop = PrimitiveCall("links", {"passage": "city", "k": 1}, ("other",), line=3)
    assert lines(printed=("city",), calls=(hop, rerank)) == (2,), "never fetched: go on from what was found"
    assert lines(printed=(), calls=(hop,)) == ()
    assert lines(printed=("city", "land"), calls=RERANKED) == ()


def test_without_gold_only_crashes_are_told_apart():
    question = a_question(gold_docs=())
    assert localise(question, a_trace()).kind == "none"
    assert localise(question, a_trace(error=TraceError("timeout", "slow"))).kind == "crashed"
