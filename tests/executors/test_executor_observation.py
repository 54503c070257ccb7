"""The observation builder: whole items, within the budget, whatever the tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpl.core.records import Passage, TraceError
from rpl.executors.parent.observation import NOTHING, build_observation
from rpl.executors.parent.sandbox import count_words
from rpl.executors.runtime.values import passage_line


def merging_counter(text: str) -> int:
    """A tokenizer whose counts do not add up: runs of equal characters are one token."""
    return sum(1 for i, char in enumerate(text) if i == 0 or char != text[i - 1])


def passage(number: int, text: str = "Some text.") -> Passage:
    return Passage(f"p{number}", f"T{number}", text)


def slow_prefix(items, budget, count) -> int:
    """How many items fit, by trying all; for counters whose counts add up."""
    lines = [item if isinstance(item, str) else passage_line(item) for item in items]
    for shown in range(len(lines), 0, -1):
        tail = [f"({len(lines) - shown} more did not fit)"] if shown < len(lines) else []
        if count("\n".join(lines[:shown] + tail)) <= budget:
            return shown
    return 0


def test_passages_and_texts_in_print_order():
    seen = build_observation([passage(1), "hello", passage(2)], None, 100, count_words)
    assert seen.text == "[p1] T1: Some text.\nhello\n[p2] T2: Some text."
    assert (seen.printed_ids, seen.omitted, seen.tokens) == (("p1", "p2"), 0, count_words(seen.text))


def test_nothing_printed():
    assert build_observation([], None, 100, count_words).text == NOTHING


def test_a_repeated_passage_is_shown_once_and_is_not_omitted():
    seen = build_observation([passage(1), passage(1), "x", "x"], None, 100, count_words)
    assert seen.text == "[p1] T1: Some text.\nx\nx"
    assert (seen.printed_ids, seen.omitted) == (("p1",), 0)


def test_the_first_item_that_does_not_fit_ends_the_observation():
    items = [passage(1), passage(2, "long " * 20), "short"]
    seen = build_observation(items, None, 30, count_words)
    assert seen.text == "[p1] T1: Some text.\n(2 more did not fit)"
    assert (seen.printed_ids, seen.omitted) == (("p1",), 2)


def test_an_item_that_could_never_fit_is_skipped_by_name_and_later_ones_stand():
    items = [passage(1, "long " * 50), passage(2), "x " * 50, "n = 3"]
    seen = build_observation(items, None, 40, count_words)
    assert seen.text.splitlines() == [
        "(passage p1 is too long to be shown)",
        "[p2] T2: Some text.",
        "(a text of 100 characters is too long to be shown)",
        "n = 3",
    ]
    assert (seen.printed_ids, seen.omitted) == (("p2",), 2)
    assert seen.tokens == count_words(seen.text) <= 40


def test_what_could_never_fit_beside_the_error_is_skipped_too():
    error = TraceError("runtime", "boom", 3)
    seen = build_observation([passage(1, "long " * 20), "n"], error, 30, count_words)
    assert seen.text == "(passage p1 is too long to be shown)\nn\nError on line 3: boom"
    name = build_observation([Passage("a\nb" * 50, "", "x " * 90)], None, 80, count_words).text
    assert "\n" not in name
    assert len(name) < 100


@pytest.mark.parametrize("item", ["a" * 900_000, "\U0001f600" * 900_000, " " * 900_000, "ab " * 300_000])
def test_no_more_is_tokenized_than_the_budget_could_show(item):
    counted = []

    def count(text):
        counted.append(len(text))
        return (len(text.encode()) + 7) // 8  # the longest tokens of real vocabularies have some more characters

    for items in ([item], [item, "short"], [item[i : i + 500] for i in range(0, len(item), 500)]):
        counted.clear()
        build_observation(items, TraceError("runtime", "boom", 1), 512, count)
        assert sum(counted) < 60 * 8 * 512  # not a tenth of what was printed


def test_all_may_fit_where_all_but_one_do_not():
    items = [passage(1), "x"]
    assert build_observation(items, None, count_words("[p1] T1: Some text.\nx"), count_words).omitted == 0
    many = ["aaaaaaaaaa", *"bcdefghi"]  # shorter than the line that would count them
    assert build_observation(many, None, len("\n".join(many)), len).omitted == 0


def test_an_error_has_the_last_line():
    seen = build_observation(["a"], TraceError("runtime", "ValueError:\n bad", 3), 100, count_words)
    assert seen.text == "a\nError on line 3: ValueError: bad"
    assert build_observation([], TraceError("timeout", "too long"), 100, count_words).text == "Error: too long"


def test_room_for_the_error_is_reserved():
    error = TraceError("runtime", "boom", 3)
    seen = build_observation(["word " * 8, "word " * 8], error, 21, count_words)
    assert seen.text.endswith("(1 more did not fit)\nError on line 3: boom")
    assert seen.tokens <= 21


def test_an_error_that_is_too_long_is_shortened():
    seen = build_observation([], TraceError("runtime", "word " * 50, 3), 12, count_words)
    assert seen.text.startswith("Error on line 3: word word")
    assert seen.text.endswith("…")
    assert seen.tokens <= 12


ITEMS = st.lists(st.one_of(st.integers(0, 6).map(passage), st.text("ab \n", max_size=30)), max_size=12)
ERRORS = st.none() | st.builds(
    TraceError, st.just("runtime"), st.text("xy ", max_size=60), st.none() | st.integers(1, 99)
)
COUNTERS = st.sampled_from([len, count_words, merging_counter])


@given(ITEMS, ERRORS, st.integers(1, 120), COUNTERS)
def test_the_budget_is_never_passed_and_items_are_whole(items, error, budget, count):
    seen = build_observation(items, error, budget, count)
    assert count(seen.text) <= budget
    assert seen.tokens == count(seen.text)
    assert len(seen.printed_ids) == len(set(seen.printed_ids))
    for identifier in seen.printed_ids:
        assert passage_line(passage(int(identifier[1:]))) in seen.text
    assert len(seen.printed_ids) + seen.omitted <= len(items)


def test_the_budget_test_can_fail():
    with pytest.raises(AssertionError):
        test_the_budget_is_never_passed_and_items_are_whole.hypothesis.inner_test([passage(1)], None, 5, lambda t: 6)


@given(st.lists(st.text("ab", min_size=1, max_size=30), max_size=20), st.integers(30, 200))
def test_as_many_items_as_fit_are_shown(items, budget):
    seen = build_observation(items, None, budget, len)
    assert len(items) - seen.omitted == slow_prefix(items, budget, len)


def test_counting_is_cheap():
    counted = []

    def count(text):
        counted.append(text)
        return len(text)

    build_observation([str(i) for i in range(500)], None, 4_000, count)
    assert len(counted) < 25
