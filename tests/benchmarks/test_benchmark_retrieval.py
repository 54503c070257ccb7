"""The retrieval benchmark: its command line, and the ratios that it makes of what the sides report."""

import pytest

from benchmarks.retrieval import amount, describe, parse, summarise
from benchmarks.sides import Measured


def measured(*seconds, answers="a"):
    return Measured(turns=[{"seconds": s, "answers": answers} for s in seconds], peak_mib=100.0)


def test_ratios_are_of_rates():
    args = parse(["programs", "--programs", "64", "--calls", "2"])
    assert args.sides == ["gathered", "single"]
    assert amount(args) == 128
    line = summarise(args, {"gathered": measured(1.0, 2.0, 1.5), "single": measured(9.0, 12.0, 7.5)})
    assert line["ratios"] == {"single": 6.0}
    assert line["sides"]["gathered"]["queries_per_s"] == pytest.approx(85.3)
    assert line["equal_answers"] == {"single": True}
    assert "6.0 times as fast as single, with the same answers" in list(describe(line))
    line = summarise(args, {"gathered": measured(1.0), "single": measured(1.0, answers="b")})
    assert "1.0 times as fast as single, with other answers" in list(describe(line))


def test_sides_belong_to_their_kind(capsys):
    args = parse(["service", "--sides", "rpl", "pyserini", "--requests", "3", "--clients", "2", "--queries", "4"])
    assert amount(args) == 24
    with pytest.raises(SystemExit):
        parse(["service", "--sides", "gathered"])
    assert "--sides of service are rpl, one-by-one, pyserini, got gathered" in capsys.readouterr().err
