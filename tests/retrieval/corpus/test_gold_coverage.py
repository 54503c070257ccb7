from rpl.core.records import Question
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.corpus.coverage import gold_coverage

CORPUS = Corpus(["a", "b"], ["A", "B"], ["x", "y"])


def question(number, *gold):
    return Question(f"q{number}", "Where?", ("here",), gold_docs=gold)


def test_a_question_counts_as_answerable_when_all_of_its_gold_is_there():
    rows = [question(0, "a", "b"), question(1, "a", "zz", "yy"), question(2, "zz"), question(3)]
    found = gold_coverage(rows, CORPUS)
    assert (found.questions, found.without_gold, found.with_gold, found.answerable) == (4, 1, 3, 1)
    assert found.share == 1 / 3
    assert found.missing == {"q1": ("zz", "yy"), "q2": ("zz",)}
    assert [found.answers(row) for row in rows] == [True, False, False, True]
    assert (
        str(found) == "1 of 3 questions with gold can be answered from this corpus (3 gold ids are not in the corpus)"
    )


def test_nothing_missing():
    found = gold_coverage([question(0, "a")], CORPUS)
    assert (found.missing, found.share) == ({}, 1.0)
    assert str(found) == "1 of 1 questions with gold can be answered from this corpus"


def test_without_gold_there_is_no_share():
    found = gold_coverage([question(0)], CORPUS)
    assert found.share is None
    assert str(found) == "none of 1 questions names a gold passage"


class Silent:
    """A server that has no `read`."""

    def missing(self, ids):
        return None


def test_a_server_that_cannot_tell_is_no_server_without_the_gold():
    found = gold_coverage([question(0, "zz")], Silent())
    assert (found.known, found.missing, found.share) == (False, {}, None)
    assert "does not say" in str(found)
