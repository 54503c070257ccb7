import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpl.core.answers import exact_match, normalize_answer, token_f1


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Euro", "euro"),
        ("an  apple,\ta day", "apple day"),
        ("66,987,244", "66987244"),
        ("+33", "33"),
        (".fr", "fr"),
        ("Europe/Paris", "europeparis"),
        ("don't", "dont"),
        ("Theatre", "theatre"),
        ("A", "a"),
        ("The", "the"),
        ("a the", "a the"),
        ("$", "$"),
        ("", ""),
        ("  ", ""),
        ("São Tomé", "são tomé"),
        ("ÅRHUS", "århus"),
        ("東京", "東京"),
        ("U.S.", "us"),
    ],
)
def test_normal_form(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


def test_article_answers_match_themselves_and_nothing_else() -> None:
    assert exact_match("A", ["A"]) == 1.0
    assert exact_match("a.", ["A"]) == 1.0
    assert exact_match("The", ["A"]) == 0.0
    assert exact_match("Paris", ["A"]) == 0.0
    assert exact_match("", ["A"]) == 0.0
    assert token_f1("Paris", ["A"]) == 0.0
    assert token_f1("A", ["A"]) == 1.0


def test_numerals_with_and_without_commas() -> None:
    assert exact_match("66987244", ["66,987,244"]) == 1.0
    assert exact_match("66,987,245", ["66,987,244"]) == 0.0


def test_accents_composed_or_not() -> None:
    decomposed = unicodedata.normalize("NFD", "Bogotá")
    assert decomposed != "Bogotá"
    assert exact_match(decomposed, ["Bogotá"]) == 1.0
    assert exact_match("Bogota", ["Bogotá"]) == 0.0


def test_any_alias_counts() -> None:
    assert exact_match("swiss franc", ["CHF", "Swiss Franc"]) == 1.0
    assert token_f1("franc", ["CHF", "Swiss Franc"]) == pytest.approx(2 / 3)


def test_no_answer_scores_zero() -> None:
    assert exact_match(None, ["x"]) == 0.0
    assert token_f1(None, ["x"]) == 0.0
    assert exact_match("", [""]) == 0.0, "an empty prediction is never right"


@pytest.mark.parametrize("word", ["yes", "no", "noanswer"])
def test_closed_answers_score_only_on_equality(word: str) -> None:
    assert token_f1(f"{word} indeed", [word]) == 0.0
    assert token_f1(word, [f"{word} indeed"]) == 0.0
    assert token_f1(word.upper(), [word]) == 1.0


def test_f1_counts_repeats_once_each() -> None:
    # Words b b c against b c c: two in common out of three and three.
    assert token_f1("b b c", ["b c c"]) == pytest.approx(2 / 3)


def test_questions_without_answers_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be scored"):
        exact_match("x", [])
    with pytest.raises(ValueError, match="sequence of strings"):
        token_f1("x", "x")


def slow_f1(pred: str, answer: str) -> float:
    a, b = normalize_answer(pred).split(), normalize_answer(answer).split()
    rest, common = list(b), 0
    for word in a:
        if word in rest:
            rest.remove(word)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = common / len(a), common / len(b)
    return 2 * precision * recall / (precision + recall)


texts = st.lists(st.sampled_from(["the", "a", "b", "cat", "cat,", "Yes!", "7,000", "é"]), max_size=6).map(" ".join)


@given(texts, texts)
def test_f1_equals_precision_and_recall_form_and_is_symmetric(pred: str, answer: str) -> None:
    score = token_f1(pred, [answer])
    assert score == token_f1(answer, [pred])
    closed = {"yes", "no", "noanswer"}
    if not closed & {normalize_answer(pred), normalize_answer(answer)} or normalize_answer(pred) == normalize_answer(
        answer
    ):
        assert score == pytest.approx(slow_f1(pred, answer))
    else:
        assert score == 0.0
    assert exact_match(pred, [answer]) <= score <= 1.0


@given(st.text(max_size=20))
def test_normalisation_empties_only_blank_text(text: str) -> None:
    assert (normalize_answer(text) == "") == (text.split() == [])
