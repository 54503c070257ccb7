"""Nothing that documents or policies write reaches a terminal as a command."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpl.core.progress import say
from rpl.core.terminal import visible, visible_json

HOSTILE = "a\x1b[2Jb\x1b]0;title\x07c\x08\x00\r\u202ed\u2066e\x9b31m\x7f\u2028"


@given(st.text())
def test_no_control_or_format_character_is_left(text):
    for char in visible(text):
        assert char in "\n\t\u200c\u200d" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
    assert json.loads(visible_json({text: text})) == {text: text}


def test_each_is_shown_as_python_writes_it():
    shown = visible(HOSTILE)
    assert shown == r"a\x1b[2Jb\x1b]0;title\x07c\x08\x00\r\u202ed\u2066e\x9b31m\x7f\u2028"
    assert json.loads(visible_json(HOSTILE)) == HOSTILE
    assert visible_json(HOSTILE).isprintable()


@pytest.mark.parametrize(
    "text", ["Rh\u00f4ne\tand\nOwl", "\u00a0\u3000", "\U0001f469\u200d\U0001f4bb", "\u0646\u200c\u0627"]
)
def test_plain_text_stays_as_it_is(text):
    assert visible(text) == text


def test_lines_about_a_run_are_shown_so(capsys):
    say(f"passage {HOSTILE}")
    assert capsys.readouterr().err == f"rpl: passage {visible(HOSTILE)}\n"
