import ast
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_strategies import profile, sources

from rpl.mutation.distance import edit_distance, levenshtein, tokens
from rpl.programs.grammar import canonical


def slow_levenshtein(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


@profile
@given(st.text("abc", max_size=80), st.text("abc", max_size=80))
def test_levenshtein_equals_the_table_form(a: str, b: str) -> None:
    assert levenshtein(a, b) == slow_levenshtein(a, b)


@profile
@given(sources, sources)
def test_distance_is_symmetric_and_zero_only_for_equal_programs(a: str, b: str) -> None:
    assert edit_distance(a, b) == edit_distance(b, a)
    assert (edit_distance(a, b) == 0) == (canonical(a) == canonical(b))
    assert edit_distance(a, a) == 0


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ("print( x )", "print(x)  # same", 0),
        ("bm25('Lyon', k=1)", "bm25('the capital of Chad', k=1)", 1),
        ("x = f'{a}: b'", "x = f'{a}'", 1),
        ("print(x)\nprint(y)", "if a:\n    print(x)\n    print(y)", 5),  # if, a, colon, line end, step in
        ("x = 1.5", "x = 2", 1),
        ("x //= 2", "x += 2", 1),
    ],
)
def test_distances_that_can_be_counted_by_hand(a: str, b: str, distance: int) -> None:
    assert edit_distance(a, b) == distance


def test_tokens_keep_strings_whole() -> None:
    assert tokens(canonical("x = ['a \\'b', \"c\", f'{y}', 1e-05]")) == (
        *("x", "=", "[", '"a \'b"', ",", "'c'", ",", "f'{y}'", ",", "1e-05", "]"),
    )


def test_it_is_cheap_for_programs_of_fifteen_lines() -> None:
    a = "\n".join(f"x{i} = [p for p in bm25('q{i}', k={i}) if p.title in question]" for i in range(15))
    b = a.replace("bm25", "dense")
    assert edit_distance(a, b) == 15
    assert least_seconds(lambda: edit_distance(a, b)) < 3 * least_seconds(lambda: ast.parse(a))


def least_seconds(work) -> float:
    return min(timeit.repeat(work, number=1, repeat=20))
