import pytest
from repair_fakes import SEED, a_question, a_trace, lookup

from rpl.core.records import PrimitiveCall, TraceError
from rpl.mutation.verify import GoldVerifier, leaks

VERIFIER = GoldVerifier(lookup)


@pytest.mark.parametrize(
    ("reason", "trace"),
    [
        ("", a_trace(printed=("city", "land"))),
        ("", a_trace(printed=("other", "land", "city"))),
        ("missing", a_trace(printed=("city",), fetched=("city", "land"))),
        ("error", a_trace(printed=("city", "land"), error=TraceError("runtime", "boom"))),
        ("infra", a_trace(printed=("city", "land"), infra_error="index gone")),
        ("over_budget", a_trace(printed=("city", "land"), printed_tokens=101)),
        ("leak", a_trace(printed=("city", "land"), source="print('Euro')", fetched=())),
    ],
)
def test_verdicts(reason, trace):
    verdict = VERIFIER.verify(a_question(), trace, max_printed_tokens=100)
    assert verdict.reason == reason
    assert verdict.ok == (not reason)


def test_the_budget_is_inclusive():
    trace = a_trace(printed=("city", "land"), printed_tokens=100)
    assert VERIFIER.verify(a_question(), trace, 100).ok
    assert not VERIFIER.verify(a_question(), trace, 99).ok


def test_without_gold_ids_a_printed_answer_is_silver():
    question = a_question(gold_docs=())
    found = VERIFIER.verify(question, a_trace(printed=("land",)), 100)
    assert (found.ok, found.silver, found.coverage) == (True, True, 1.0)
    lost = VERIFIER.verify(question, a_trace(printed=("city",)), 100)
    assert (lost.ok, lost.silver, lost.reason) == (False, True, "missing")
    assert not VERIFIER.verify(a_question(), a_trace(printed=("city", "land")), 100).silver


@pytest.mark.parametrize("answers", [("yes",), ("no", "No"), ("the",)])
def test_answers_that_prove_nothing_are_no_gold(answers):
    question = a_question(gold_docs=(), answers=answers)
    expected = "no_gold" if answers != ("the",) else "missing"
    assert VERIFIER.verify(question, a_trace(printed=("city",)), 100).reason == expected


def test_silver_matches_whole_words_only():
    question = a_question(gold_docs=(), answers=("Fran",))
    assert not VERIFIER.verify(question, a_trace(printed=("city",)), 100).ok


def calls(*steps):
    return tuple(PrimitiveCall(name, args, results) for name, args, results in steps)


LEAKS = [
    # (what, program, calls, offending aliases)
    ("an answer as a query", "print(bm25('euro')[0])", calls(("bm25", {"query": "euro"}, ("land",))), ("euro",)),
    (
        "an answer inside a query",
        "x = bm25('the Euro zone')",
        calls(("bm25", {"query": "the Euro zone"}, ())),
        ("euro",),
    ),
    ("part of a word is none", "x = bm25('European')", calls(("bm25", {"query": "European"}, ())), ()),
    (
        "an answer that an earlier call fetched",
        "for p in bm25('Lyon'):\n    x = bm25('Euro')",
        calls(("bm25", {"query": "Lyon"}, ("land",)), ("bm25", {"query": "Euro"}, ())),
        (),
    ),
    (
        "an answer that only a later call fetched",
        "x = bm25('Euro')\ny = bm25('Lyon')",
        calls(("bm25", {"query": "Euro"}, ()), ("bm25", {"query": "Lyon"}, ("land",))),
        ("euro",),
    ),
    (
        "an answer put together at run time",
        "x = bm25('Eu' + 'ro')",
        calls(("bm25", {"query": "Euro"}, ("land",))),
        ("euro",),
    ),
    ("an answer in a filter, never fetched", "x = 'Euro' in question", calls(), ("euro",)),
    ("an answer in an f-string", "print(f'{question} Euro')", calls(), ("euro",)),
    ("a gold id", "print(read('land'))", calls(("read", {"passage_id": "land"}, ("land",))), ("land",)),
    (
        "a gold id that was fetched before",
        "x = bm25('Lyon')\nprint(read(x[0].id))",
        calls(("bm25", {"query": "Lyon"}, ("land",)), ("read", {"passage_id": "land"}, ("land",))),
        (),
    ),
    ("words of the question", "x = bm25('Lyon currency')", calls(("bm25", {"query": "Lyon currency"}, ())), ()),
    ("a number that is no string", "x = bm25(question, k=3)", calls(("bm25", {"query": "x", "k": 3}, ())), ()),
]


@pytest.mark.parametrize(("program", "made", "expected"), [c[1:] for c in LEAKS], ids=[c[0] for c in LEAKS])
def test_leaks(program, made, expected):
    question = a_question(answers=("Euro", "3"))
    assert leaks(program, question, a_trace(calls=made), lookup) == expected
    assert VERIFIER.leaks(program, question, a_trace(calls=made)) == expected


def test_an_answer_that_the_question_names_is_no_leak():
    question = a_question(question="Which city has more people, Lyon or Oslo?", answers=("Oslo",))
    program = "x = bm25('Oslo', k=1)"
    made = calls(("bm25", {"query": "Oslo"}, ()))
    assert leaks(program, question, a_trace(calls=made), lookup) == ()
    unnamed = a_question(question="Which city has more people?", answers=("Oslo",))
    assert leaks(program, unnamed, a_trace(calls=made), lookup) == ("oslo",)


def test_yes_and_no_are_no_aliases():
    assert leaks("print('no result')", a_question(answers=("no",)), a_trace(SEED), lookup) == ()
