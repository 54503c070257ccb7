"""Sides that take turns, and what is made of their reports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import wait_until

from benchmarks.sides import ROOT, Measured, Side, SideError, take_turns
from benchmarks.turns import peak_mib

SCRIPT = """
import sys
from benchmarks.turns import Turns
turns = Turns()
print("chatter")
turns.ready(colour="{name}")
for number in range(3):
    turns.wait()
    with open({log!r}, "a") as log:
        log.write("{name}")
    turns.done({seconds} + number)
turns.finish(late=1)
"""


def side(tmp_path, name, seconds):
    script = SCRIPT.format(name=name, log=str(tmp_path / "log"), seconds=seconds)
    return Side(name, [sys.executable, "-c", script], threads=1)


def test_sides_alternate_and_report(tmp_path):
    with side(tmp_path, "a", 1.0) as a, side(tmp_path, "b", 10.0) as b:
        results = take_turns({"a": a, "b": b}, warmup=1, repeats=2)
    assert (tmp_path / "log").read_text() == "ababab"
    assert results["a"].seconds == [2.0, 3.0]
    assert [turn["seconds"] for turn in results["b"].warmup] == [10.0]
    assert results["a"].facts == {"colour": "a", "late": 1}
    assert 5 < results["a"].peak_mib < 200
    assert results["b"].rate(23.0) == pytest.approx(2.0)
    json.dumps(results["a"].summary())


def test_spread_is_the_range_over_the_median():
    assert Measured(turns=[{"seconds": s} for s in (2.0, 3.0, 2.5)]).summary()["spread"] == 0.4


def test_a_side_that_fails_says_why():
    broken = Side("broken", [sys.executable, "-c", "raise SystemExit('no such model')"])
    with broken, pytest.raises(SideError, match=r"(?s)broken ended with status 1.*no such model"):
        broken.ready()
    with pytest.raises(SideError, match="cannot be started"):
        Side("absent", ["/no/such/python"])


def test_a_side_that_fails_in_its_turn_says_why():
    code = "from benchmarks.turns import Turns; t = Turns(); t.ready(); t.wait(); raise ValueError('out of memory')"
    with Side("late", [sys.executable, "-c", code]) as late:
        late.ready()
        with pytest.raises(SideError, match="out of memory"):
            late.turn()


ORPHAN = """
import sys
from benchmarks.sides import Side
side = Side("busy", [sys.executable, "-c", {code!r}])
side.ready()
print(side._process.pid, flush=True)
side.turn()
"""


def runs(process):
    try:
        return "zombie" not in (process / "status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must tell children that their parent is gone")
def test_a_side_does_not_outlive_a_benchmark_that_was_killed():
    code = "import time; from benchmarks.turns import Turns; t = Turns(); t.ready(); t.wait(); time.sleep(600)"
    command = [sys.executable, "-c", ORPHAN.format(code=code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as benchmark:
        side = Path("/proc") / benchmark.stdout.readline().strip()
        assert runs(side)
        benchmark.kill()
    wait_until(lambda: not runs(side), "the end of the side")


def test_peak_memory_counts_what_was_freed():
    before = peak_mib()
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    del block
    assert peak_mib() >= before
