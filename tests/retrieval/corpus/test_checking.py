"""`rpl data check`: everything that is wrong with a user's files in one run."""

import json
import re

import pytest

from rpl.cli.commands.data import run as data_command
from rpl.cli.commands.index import run as index_command
from rpl.core.errors import ConfigError, DataError
from rpl.core.files import write_jsonl
from rpl.retrieval.corpus.budget import PrintBudget, estimated_tokens, printed_line
from rpl.retrieval.corpus.checking import check_corpus
from rpl.retrieval.indexing.folder import build_index
from rpl.retrieval.library_config import LibraryConfig

GOOD = [
    {"id": "owl", "title": "Owl", "text": "An owl sleeps by day.", "source": "book", "page": 3},
    {"id": "long", "title": "Owls", "text": "owl " * 900, "source": "web"},
    {"id": "bee", "title": None, "text": "Bees make <b>honey</b> <p class='x'>daily</p>."},
    {"id": "again", "title": "Owl", "text": "An owl sleeps by day."},
]
BAD = ["id,title,text", "[1, 2]", '{"id": 7, "text": "x"}', '{"id": "owl", "text": "y"}', '{"id": "none"}']
QUESTIONS = [
    {"id": "q1", "question": "When?", "answers": ["day"], "gold_docs": ["owl"], "split": "test"},
    {"id": "q2", "question": "Where?", "answers": ["x"], "gold_docs": ["long", "gone"]},
    {"id": "q3", "question": "Why?", "answers": ["x"]},
    {"id": "q4", "question": "What?", "answers": ["x"], "gold_docs": ["long"]},
]


def lines(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def figures(text):
    """The numbers of the printed tables by the name before them."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition("  ")
        if rest.strip():
            found[name] = rest.split()[0]
    return found


def test_all_bad_rows_are_named_in_one_run(tmp_path, capsys):
    corpus = lines(tmp_path / "c.jsonl", BAD[0], *GOOD, *BAD[1:])
    with pytest.raises(DataError, match=r"^5 rows cannot be used; the first: .*c\.jsonl:1: not JSON"):
        data_command(["check", "--corpus", corpus])
    said = capsys.readouterr().out
    assert "c.jsonl:1: not JSON (Expecting value at column 1); the file must have one JSON object a line: conv" in said
    assert "c.jsonl:6: expected a JSON object, got list" in said
    assert "c.jsonl:7: field 'id' must be a string, got int 7" in said
    assert "c.jsonl:8: id 'owl' was already used in line 2" in said
    assert "c.jsonl:9: field 'text' is missing" in said
    assert figures(said)["passages"] == "4"
    assert figures(said)["rows that cannot be used"] == "5"


def test_what_is_unusual_is_counted_and_no_error(tmp_path, capsys):
    found = data_command(["check", "--corpus", lines(tmp_path / "c.jsonl", *GOOD)])
    assert (found["passages"], found["untitled"], found["copies"], found["too_long"]) == (4, 1, 1, 1)
    said = capsys.readouterr().out
    table = figures(said)
    assert table["without a title"] == "1"
    assert table["with tags of HTML"] == "1"
    assert table["copies of an earlier passage"] == "1"
    assert "1  (again)" in said
    assert table["above the print budget of 512 tokens"] == "1"
    assert "1  (long)" in said
    assert table["with the field 'source', which is not read"] == "2"
    assert table["with the field 'page', which is not read"] == "1"


def test_a_clean_corpus_has_two_lines(tmp_path, capsys):
    data_command(["check", "--corpus", lines(tmp_path / "c.jsonl", {"id": "a", "title": "A", "text": "x"})])
    assert figures(capsys.readouterr().out) == {"passages": "1", "rows that cannot be used": "0"}


def test_gold_that_the_corpus_lacks_or_cannot_print(tmp_path, capsys):
    corpus, questions = lines(tmp_path / "c.jsonl", *GOOD), lines(tmp_path / "q.jsonl", *QUESTIONS, '{"id": "q5"}')
    command = ["check", "--corpus", corpus, "--questions", questions]
    with pytest.raises(DataError, match=r"^1 row cannot be used and 1 gold id is not in .*c\.jsonl; the first: .*:5: "):
        data_command(command)
    said = capsys.readouterr().out
    assert "q.jsonl:2: gold id 'gone' of question 'q2' is not in the corpus" in said
    assert figures(said) | {"in split test": "1", "without a split": "3", "without gold": "1"} == figures(said)
    assert re.search(r"with gold that the corpus lacks +1  \(q2\)\n", said)
    assert re.search(r"with gold above the print budget of 512 tokens +2  \(q2, q4\)\n", said)
    assert "2 of 3 questions with gold can be answered from this corpus (1 gold id is not in the corpus)" in said


def test_the_budget_may_be_another_and_be_counted_by_a_tokenizer(tmp_path, capsys):
    corpus = lines(tmp_path / "c.jsonl", *GOOD)
    assert data_command(["check", "--corpus", corpus, "--printed_tokens", "5"])["too_long"] == 4
    assert data_command(["check", "--corpus", corpus, "--printed_tokens", "5000"])["too_long"] == 0
    # The tokenizer of `tiny` knows letters: 900 words have thousands.
    assert data_command(["check", "--corpus", corpus, "--printed_tokens", "2000", "--policy", "tiny"])["too_long"] == 1
    assert data_command(["check", "--corpus", corpus, "--printed_tokens", "2000"])["too_long"] == 0
    with pytest.raises(ConfigError, match="--printed_tokens must be at least 1, got 0"):
        data_command(["check", "--corpus", corpus, "--printed_tokens", "0"])


def test_the_line_that_is_counted_is_the_one_that_programs_print():
    from rpl.core.records import Passage
    from rpl.executors.runtime.values import passage_line

    assert printed_line("a", "Owl", "text") == passage_line(Passage("a", "Owl", "text"))


def test_the_default_budget_is_that_of_programs():
    from rpl.executors.base import ExecutionLimits

    assert PrintBudget().tokens == ExecutionLimits().printed_tokens


@pytest.mark.parametrize(("length", "exceeds"), [(19, False), (20, True)])
def test_a_passage_at_the_budget_fits(length, exceeds):
    assert PrintBudget(5).exceeded_by("a", "", "x" * (length - len("[a] : ") + 1)) is exceeds
    assert estimated_tokens("é" * 10) == 5


def test_an_index_folder_is_checked_like_its_corpus(tmp_path, capsys):
    corpus = lines(tmp_path / "c.jsonl", *GOOD)
    folder = build_index(corpus, tmp_path / "i", LibraryConfig())
    assert data_command(["check", "--corpus", str(folder)]) == data_command(["check", "--corpus", corpus])
    with pytest.raises(DataError, match=r"is a folder; a file of JSON lines \(\.jsonl or \.jsonl\.gz\) is wanted"):
        data_command(["check", "--corpus", str(tmp_path)])
    with pytest.raises(DataError, match="is a folder; a file of JSON lines"):
        index_command(["build", str(tmp_path), "--out", str(tmp_path / "j")])


def test_the_build_says_what_is_too_long_and_what_it_is_good_for(tmp_path, capsys):
    corpus, questions = lines(tmp_path / "c.jsonl", *GOOD), lines(tmp_path / "q.jsonl", *QUESTIONS)
    index_command(["build", corpus, "--out", str(tmp_path / "i"), "--questions", questions])
    said = capsys.readouterr()
    assert said.err.count("index ready") == 1
    assert "1 passage of 4 longer than the 512 tokens that a program may print by default" in said.err
    assert "2 of 3 questions with gold can be answered from this corpus" in said.out
    assert "gold id 'gone' of question 'q2'" in said.out


def test_a_build_that_fails_names_all_bad_rows(tmp_path, capsys):
    corpus = lines(tmp_path / "c.jsonl", *GOOD, *BAD)
    with pytest.raises(DataError, match=r"^5 rows of .*c\.jsonl cannot be used; the first: .*c\.jsonl:5: not JSON"):
        index_command(["build", corpus, "--out", str(tmp_path / "i")])
    assert "c.jsonl:9: field 'text' is missing" in capsys.readouterr().out
    assert not (tmp_path / "i").exists()
    one = lines(tmp_path / "one.jsonl", *GOOD, BAD[-1])
    with pytest.raises(DataError, match=r"one\.jsonl:5: field 'text' is missing"):
        index_command(["build", one, "--out", str(tmp_path / "i")])


def test_many_faults_are_counted_and_the_first_shown(tmp_path, capsys):
    with pytest.raises(DataError, match=r"^60 rows cannot be used"):
        data_command(["check", "--corpus", lines(tmp_path / "c.jsonl", GOOD[0], *["x"] * 60)])
    said = capsys.readouterr().out
    assert "c.jsonl:21:" in said
    assert "c.jsonl:22:" not in said
    assert "… and 40 more" in said


def test_a_checked_corpus_knows_its_ids(tmp_path):
    write_jsonl(tmp_path / "c.jsonl", GOOD)
    assert check_corpus(tmp_path / "c.jsonl", PrintBudget()).missing(["owl", "gone"]) == {"gone"}


def test_a_search_says_what_it_searches_and_that_nothing_was_found(tmp_path, capsys):
    index_command(["search", "zzqx", "--library.corpus", "atlas-mini"])
    said = capsys.readouterr()
    assert said.out == "nothing found\n"
    assert "no --corpus was given" not in said.err


def test_a_search_of_the_default_corpus_says_so(monkeypatch, capsys):
    monkeypatch.setattr("rpl.retrieval.library.opening.open_library", lambda config, say: pytest.exit(config.corpus))
    with pytest.raises(pytest.exit.Exception, match=r"^atlas$"):
        index_command(["search", "x"])
    assert "no --corpus was given: this searches the embedded atlas" in capsys.readouterr().err
