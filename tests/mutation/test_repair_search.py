import dataclasses
import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repair_fakes import SEED, ScriptedExecutor, a_question, a_trace, by_hash, lookup, printing

from rpl.core.errors import ConfigError, RetrieverError
from rpl.mutation.distance import edit_distance
from rpl.mutation.donors import collect_donors
from rpl.mutation.localise import localise
from rpl.mutation.registry import OPERATORS
from rpl.mutation.scheduling import PREFERENCES, foreign_words, neighbours
from rpl.mutation.search import RepairConfig, repair
from rpl.mutation.verify import GoldVerifier
from rpl.programs.grammar import parse

VERIFIER = GoldVerifier(lookup)
QUESTION = a_question()
PARENT = parse(SEED)
NEAREST = RepairConfig(token_price=0.0, foreign_price=0.0)


def run(script, config=RepairConfig(), parent=PARENT, question=QUESTION, **more):
    executor = ScriptedExecutor(script)
    return repair(question, parent, executor, VERIFIER, config, **more), executor


@settings(max_examples=25, deadline=None)
@given(
    salt=st.text(max_size=4),
    success=st.sampled_from([0, 2, 30]),
    limit=st.integers(1, 40),
    rest=st.integers(0, 12),
    batch=st.integers(1, 9),
    edits=st.integers(1, 3),
    minimise=st.booleans(),
)
def test_only_verified_programs_come_back_and_the_budget_holds(salt, success, limit, rest, batch, edits, minimise):
    config = RepairConfig(edits, limit, rest, batch, minimise=minimise)

    def script(source):
        return by_hash(source, salt, success)

    found, executor = run(script, config)
    assert found.executions == len(executor.jobs) <= limit
    assert len(set(executor.jobs)) == len(executor.jobs), "a program was executed twice"
    assert max(executor.batches) <= batch
    assert len(found.edits) == len(found.operators) <= edits
    if found.child is None:
        assert found.verdict in ("budget", "exhausted")
        assert not any(VERIFIER.verify(QUESTION, script(s), config.max_printed_tokens).ok for s in executor.jobs)
    else:
        assert found.verdict in ("repaired", "already_verified")
        assert found.child in executor.jobs
        assert VERIFIER.verify(QUESTION, script(found.child), config.max_printed_tokens).ok
        assert found.trace is not None
        assert found.trace.source == found.child
        assert found.edit_distance == edit_distance(SEED, found.child)
    again, second = run(script, config, seed=99)
    assert second.jobs == executor.jobs
    assert dataclasses.replace(again, seed=found.seed) == found


def test_a_verified_parent_is_its_own_repair():
    found, executor = run(printing(("bm25", ("city", "land"))))
    assert (found.verdict, found.child, found.executions, found.failure) == ("already_verified", SEED, 1, "none")
    assert executor.jobs == [SEED]


def test_a_bridge_repairs_a_two_hop_question():
    found, _ = run(printing(("print(p)", ("city",)), ("links(", ("land",))))
    assert found.verdict == "repaired"
    assert found.operators == ("bridge",)
    assert "links(p)" in (found.child or "")
    assert found.failure == "never_fetched"


def test_two_steps_are_found_through_the_one_that_makes_progress():
    found, _ = run(
        printing(("'Lyon'", ("city",)), ("links(", ()), ("k=3", ("land",))), RepairConfig(max_executions=200)
    )
    assert found.verdict == "repaired"
    assert 1 < len(found.edits) <= 3


def test_the_nearest_wins_even_if_a_farther_one_came_first():
    # The bridge is tried long before k=8 is, but lies farther away.
    script = printing(("question", ("city",)), ("links(p)", ("land",)), ("question, k=8)", ("land",)))
    found, executor = run(script, dataclasses.replace(NEAREST, rest_executions=200, max_executions=300, batch_size=1))
    first = next(s for s in executor.jobs if VERIFIER.verify(QUESTION, script(s), 512).ok)
    assert "links(p)" in first
    assert found.child == "for p in bm25(question, k=8):\n    print(p)"
    assert found.edit_distance == 1
    hasty, _ = run(script, dataclasses.replace(NEAREST, rest_executions=0, batch_size=1))
    assert hasty.child == first, "without a rest budget the first success stays"


def test_fewer_printed_tokens_outweigh_distance_at_a_price():
    def script(source):
        trace = printing(("question", ("city",)), ("links(p)", ("land",)), ("question, k=8)", ("land",)))(source)
        return dataclasses.replace(trace, printed_tokens=500 if "k=8" in source else trace.printed_tokens)

    config = RepairConfig(rest_executions=200, max_executions=300, batch_size=1)
    found, _ = run(script, config)
    assert "links(p)" in (found.child or "")
    found, _ = run(script, dataclasses.replace(config, token_price=0.0))
    assert found.child == "for p in bm25(question, k=8):\n    print(p)"


def test_needless_edits_are_undone():
    """Half of the gold draws the search to an edit that the next one makes superfluous."""
    script = printing(("'Lyon'", ("city",)), ("links(", ("city", "land")))
    config = dataclasses.replace(NEAREST, batch_size=1, rest_executions=1)
    left, _ = run(script, dataclasses.replace(config, minimise=False))
    assert left.operators == ("query_edit", "bridge")
    undone, _ = run(script, config)
    assert undone.operators == ("bridge",)
    assert undone.edit_distance < left.edit_distance


def test_a_repair_that_leaks_is_no_repair():
    question = a_question(answers=("links",), gold_docs=("city", "land"))

    def script(source):
        leaky = "'Lyon'" in source
        return a_trace(source, ("city", "land") if leaky else (), query="the links" if leaky else "x")

    found, executor = run(script, RepairConfig(max_executions=30), question=question)
    assert any("'Lyon'" in source for source in executor.jobs)
    assert found.child is None


def test_an_infrastructure_fault_voids_the_search():
    def script(source):
        return a_trace(source, infra_error="index gone" if "'Lyon'" in source else None)

    with pytest.raises(RetrieverError, match="index gone"):
        run(script)
    with pytest.raises(RetrieverError, match="index gone"):
        run(lambda source: a_trace(source, infra_error="index gone"))


def test_without_anything_to_verify_against_nothing_is_searched():
    found, executor = run(printing(), question=a_question(gold_docs=(), answers=("yes",)))
    assert (found.verdict, found.child, len(executor.jobs)) == ("no_gold", None, 1)


def test_silver_questions_are_repaired_too():
    found, _ = run(printing(("links(", ("land",))), question=a_question(gold_docs=()))
    assert found.verdict == "repaired"


def test_distinct_calls_are_counted_whatever_the_cache_says():
    def script(source):
        trace = a_trace(source, (), query="one" if "'Lyon'" in source else "two")
        return dataclasses.replace(trace, calls=tuple(dataclasses.replace(c, cached=True) for c in trace.calls))

    found, _ = run(script, RepairConfig(max_executions=9))
    assert (found.executions, found.uncached_calls) == (9, 2)


def test_records_do_not_depend_on_clocks_and_caches():
    def slow(source):
        trace = a_trace(source, ("city", "land"), seconds=1.5)
        return dataclasses.replace(trace, calls=(dataclasses.replace(trace.calls[0], seconds=0.7, cached=True),))

    found, _ = run(slow)
    assert found.trace is not None
    assert found.trace.seconds == found.trace.calls[0].seconds == 0.0
    assert not found.trace.calls[0].cached


def test_unavailable_primitives_are_never_tried():
    _, executor = run(printing(), RepairConfig(max_executions=60), without=("dense", "rerank"))
    assert not any("dense" in source or "rerank" in source for source in executor.jobs)
    _, executor = run(printing(), RepairConfig(max_executions=200))
    assert any("dense" in source for source in executor.jobs), "the check above can fail"


def test_siblings_lend_their_parts():
    sibling = parse("for h in bm25('Rhone valley', k=2):\n    print(h)")
    found, _ = run(printing(("Rhone", ("city", "land"))), siblings=(sibling,))
    assert "Rhone valley" in (found.child or "")
    alone, _ = run(printing(("Rhone", ("city", "land"))))
    assert alone.child is None


def test_donors_see_no_gold():
    """Blind by signature (no gold goes in) and by effect (gold changes nothing but the verdicts)."""
    assert list(inspect.signature(collect_donors).parameters) == ["question", "retrieved", "siblings"]
    nothing = printing()
    _, one = run(nothing)
    _, two = run(nothing, question=a_question(answers=("Krona",), gold_docs=("nowhere", "other")))
    assert one.jobs == two.jobs


def test_every_operator_stays_possible_in_every_class():
    for tiers in PREFERENCES.values():
        named = [name for tier in tiers for name in tier]
        assert set(named) <= set(OPERATORS)
        assert len(named) == len(set(named))
    parent = parse("x = 1\nfor p in rerank('a', bm25('a', k=3)):\n    if 'b' in p.text:\n        print(p)")
    donors = collect_donors(QUESTION.question)
    mutants = list(neighbours(parent, localise(QUESTION, a_trace()), donors, frozenset()))
    assert {"remove_rerank", "delete", "change_filter", "query_edit"} <= {m.operator for m in mutants}


def test_operators_for_the_failure_come_first():
    parent = parse("for p in rerank(question, bm25(question, k=9), k=1):\n    print(p)")
    lost = a_trace(calls=(a_trace(fetched=("city", "land")).calls[0],), printed=())
    assert localise(QUESTION, lost).kind == "not_printed"
    reranked = dataclasses.replace(
        lost,
        calls=(
            *lost.calls,
            dataclasses.replace(lost.calls[0], name="rerank", args={"passages": ["land"]}, result_ids=()),
        ),
    )
    first = next(neighbours(parent, localise(QUESTION, reranked), collect_donors("Lyon?"), frozenset()))
    assert first.operator == "change_k" or first.operator == "remove_rerank"


def test_foreign_words_are_those_that_the_question_lacks():
    assert foreign_words(parse("x = bm25('Lyon currency')"), QUESTION.question) == 0
    assert foreign_words(parse("x = bm25('Borders of Lyon')"), QUESTION.question) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"max_edits": 0}, {"max_executions": 0}, {"rest_executions": -1}, {"batch_size": 0}, {"token_price": -1.0}],
)
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ConfigError, match=f"repair.{next(iter(wrong))} must be at least"):
        RepairConfig(**wrong)
