import dataclasses

import pytest

from rpl.core.errors import ConfigError
from rpl.core.records import PrimitiveCall, Question, Rollout, Trace, TraceError, Turn
from rpl.credit.rewards import REWARD_TERMS, check_reward, score

QUESTION = Question("q", "Where?", ("New York", "NYC"), ("g1", "g2", "g3"))


def rollout(answer="New York City", printed=("g1", "x"), error=None, invalid=None):
    calls = (PrimitiveCall("bm25", {}, ("g1", "x")), PrimitiveCall("read", {}, ("g1",)))
    trace = Trace("print(1)", "text", printed_ids=printed, printed_tokens=150, calls=calls, error=error)
    turns = (Turn((1,), (0.0,), "", "stop", program="print(1)", trace=trace), Turn((2,), (0.0,), "", "stop"))
    return Rollout("q", "g", 0, 0, (9,), turns, answer=answer, invalid=invalid)


def value(name, r, question=QUESTION):
    return score(r, question, {name: 1.0}).total


def test_each_term():
    r = rollout()
    got = {name: value(name, r) for name in REWARD_TERMS}
    assert got == {
        "em": 0.0,
        "f1": 0.8,
        "format": 1.0,
        "coverage": 0.333333,
        "precision": 0.5,
        "evidence_f1": 0.4,
        "all_gold": 0.0,
        "invalid": 0.0,
        "program_error": 0.0,
        "printed_tokens": 1.5,
        "calls": 2.0,
        "turns": 2.0,
    }
    failed = rollout(None, (), TraceError("runtime", "boom"), "turn_budget")
    assert [value(n, failed) for n in ("em", "f1", "format", "coverage", "invalid", "program_error")] == [
        0,
        0,
        0,
        0,
        1,
        1,
    ]
    full = rollout("nyc", ("g3", "g2", "g1"))
    assert [value(n, full) for n in ("em", "f1", "coverage", "all_gold")] == [1, 1, 1, 1]


def test_no_gold_contributes_nothing():
    question = dataclasses.replace(QUESTION, gold_docs=())
    for name in ("coverage", "precision", "evidence_f1", "all_gold"):
        assert value(name, rollout(), question) == 0.0


def test_evidence_f1_tells_what_was_needed_from_what_was_printed_beside_it():
    exact, wide, narrow = (
        rollout(printed=("g1", "g2", "g3")),
        rollout(printed=("g1", "g2", "g3", "x")),
        rollout(printed=("g1",)),
    )
    assert value("coverage", exact) == value("coverage", wide) == value("precision", narrow) == 1
    assert value("evidence_f1", exact) == 1
    assert value("evidence_f1", wide) == pytest.approx(6 / 7, abs=1e-6)
    assert value("evidence_f1", narrow) == 0.5
    assert value("precision", rollout(printed=())) == value("evidence_f1", rollout(printed=())) == 0


def test_weighted_sum_is_rounded_so_that_equal_outcomes_are_equal():
    weights = {"em": 1.0, "coverage": 0.3, "printed_tokens": -0.1}
    reward = score(rollout("nyc"), QUESTION, weights)
    assert reward.terms == {"em": 1.0, "coverage": 0.333333, "printed_tokens": 1.5}
    assert reward.total == 0.95
    assert 0.1 + 0.2 != 0.3
    sums = {score(rollout("nyc"), QUESTION, dict(w)).total for w in (weights.items(), reversed(weights.items()))}
    assert len(sums) == 1
    assert str(score(rollout(None), QUESTION, {"em": -1.0}).total) == "0.0"


def test_a_void_rollout_has_no_reward():
    trace = Trace("x", "", infra_error="index gone")
    void = Rollout("q", "g", 0, 0, (1,), (Turn((1,), (0.0,), "", "stop", trace=trace),))
    with pytest.raises(ValueError, match="index gone"):
        score(void, QUESTION, {"em": 1.0})
    with pytest.raises(ValueError, match="'q'"):
        score(rollout(), dataclasses.replace(QUESTION, id="other"), {"em": 1.0})


@pytest.mark.parametrize(
    ("weights", "message"),
    [({}, "at least one of em, f1"), ({"exact": 1.0}, r"reward\.exact.*em, f1"), ({"em": float("nan")}, "finite")],
)
def test_bad_weights(weights, message):
    with pytest.raises(ConfigError, match=message):
        check_reward(weights)
