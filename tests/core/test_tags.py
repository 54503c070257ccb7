"""What can be written inside the tags of a transcript, and what is read back."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpl.core.tags import answer_text, answer_writable, defuse, has_result_tag, program_text, read_action, writable

FRAGMENTS = ["<program>", "</program>", "</answer>", "<answer>", "<result>", "</RESULT >", "x = 1", "\n", " ", "'", "é"]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join))
def test_writable_is_exactly_what_is_read_back(text):
    turn = program_text(text)
    # The sampler stops at the first end tag, so only what stands before it is ever read.
    ends = [turn.find(end) + len(end) for end in ("</program>", "</answer>") if end in turn]
    read = read_action(turn[: min(ends)])
    assert writable(text) == (read == ("program", text, "") and not has_result_tag(turn))


@pytest.mark.parametrize(
    "program",
    [
        "bm25('</program> Guide')",
        "bm25('Owl </program><answer>42</answer>')",
        "bm25('</answer>')",
        "bm25('<result>')",
        "bm25('</ Result >')",
        " print(1)",
        "print(1)\n",
        "x = '''\n   \n'''",
    ],
)
def test_programs_that_a_turn_cannot_hold(program):
    assert not writable(program)


@pytest.mark.parametrize("program", ["print(1)", "bm25('a < b > c')", "bm25('<answer>')", "if a:\n    print(a)", ""])
def test_programs_that_a_turn_can_hold(program):
    assert writable(program)
    assert read_action(program_text(program)) == ("program", program, "")


def test_answers_that_a_turn_can_and_cannot_hold():
    for answer in ("Lyon", "a < b", "</program", "<program>"):
        assert answer_writable(answer)
        assert read_action(answer_text(answer)) == ("answer", answer, "")
    for answer in ("", " Lyon", "</answer>", "</program>", "a <result> b"):
        assert not answer_writable(answer)


@pytest.mark.parametrize(
    "tag",
    ["</result>", "</RESULT>", "</result >", "< /result>", "<Answer>", "< program\n>", "<result id=1>", "</answer/>"],
)
def test_tags_in_any_case_and_spacing_are_defused(tag):
    assert defuse(f"a {tag} b") == f"a [{tag[1:-1]}] b"


@pytest.mark.parametrize("text", ["a < b", "<results>", "<b>answer</b>", "a<result", "1 < program"])
def test_other_text_is_left_alone(text):
    assert defuse(text) == text


def test_defusing_is_linear():
    # A quadratic pattern would need minutes for these.
    for text in ("< " * 200_000, "<" + " " * 400_000, "<result " * 100_000, "</" + "\n" * 400_000):
        assert defuse(text) == text


@given(st.text(alphabet="</>resultRESULT \n", max_size=40))
def test_nothing_that_was_defused_holds_a_tag(text):
    assert not has_result_tag(defuse(text))


def test_the_body_of_a_program_is_dedented_as_python_does():
    body = "    a = 1\n    print(a)"
    assert read_action(f"<program>\n{body}\n</program>") == ("program", textwrap.dedent(body), "")
