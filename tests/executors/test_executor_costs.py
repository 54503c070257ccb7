"""What fuel buys: no operation takes long, and none grows a value past its bounds, without the fuel for it."""

from __future__ import annotations

import gc
import time

import pytest
from test_executor_language import run
from test_fuel_bounds_time import FREE, TIMES, Silent, step_s

from rpl.executors.runtime.compiling import compile_program
from rpl.executors.runtime.primitives import ProgramLimits
from rpl.executors.runtime.restricted import run_program

FUEL = 5_000

TWINS = "a = b = 0\nfor i in range(30):\n    a = [a, a]\n    b = [b, b]\n"  # equal, 2 ** 30 items each, no part shared
TUPLES = TWINS.replace("[", "(").replace("]", ")")
TEXT = "t = 'a' * 1000000\n"
MODULUS = "m = 2305843009 * 1000000000 + 213693951\n"  # 2 ** 61 - 1: its multiples have equal hashes
LIST = "a = [0] * 100000\n"
DENSE = "[" + ", ".join(["7%5%3%2%9"] * 300) + "]"
FOREVER = "while True:\n    "

OPERATIONS = {
    # Comparisons.
    "equality of deep lists": TWINS + "a == b",
    "inequality of deep lists": TWINS + "a != b",
    "order of deep lists": TWINS + "a < b",
    "equality of deep dicts": TWINS + "{1: a} == {1: b}",
    "equality of the items of dicts": TWINS + "{1: a}.items() == {1: b}.items()",
    "a deep list in a list": TWINS + "a in [b]",
    "a deep list in the values of a dict": TWINS + "a in {1: b}.values()",
    "a deep list in a generator of pairs": TWINS + "(a,) in zip([b])",
    "a chain of deep lists": TWINS + "a == b == a",
    "index of a deep list": TWINS + "[b].index(a)",
    "count of a deep list": TWINS + "[b].count(a)",
    "removal of a deep list": TWINS + "[b].remove(a)",
    "sorting deep lists": TWINS + "sorted([a, b])",
    "sorting deep lists in place": TWINS + "[a, b].sort()",
    "sorting by deep lists": TWINS + "sorted([0, 1], key=lambda i: a if i else b)",
    "the larger of deep lists": TWINS + "max(a, b)",
    "the smallest of deep lists": TWINS + "min([a, b])",
    "equality of long texts": TEXT + f"s = 'a' * 1000000\n{FOREVER}t == s",
    "order of long texts": TEXT + f"s = 'a' * 1000000\n{FOREVER}t < s",
    "equality of long lists": LIST + f"b = [0] * 100000\n{FOREVER}a == b",
    "a number in a long list": LIST + FOREVER + "x = 1\n    x in a",
    "a passage in a long list": LIST + "p = bm25('a', k=2)\na = [p[0]] * 100000\n" + FOREVER + "p[1] in a",
    "a long text in a list of long texts": TEXT + f"s = ('a' * 999999 + 'b')\nl = [s] * 100000\n{FOREVER}t in l",
    "a fraction in a long range": "x = 0.5\nr = range(1000000)\n" + FOREVER + "x in r",
    "a text in a long range": "x = 'a'\nr = range(1000000)\n" + FOREVER + "x in r",
    "a number in a stream of pairs": "x = 1\nx in zip(range(1000000))",
    "equality of sets of long texts": "s = {'a' * 900000 + str(i) for i in range(5)}\n"
    "t = {'a' * 900000 + str(i) for i in range(5)}\n" + FOREVER + "s == t",
    # Keys.
    "a deep tuple as a key": TUPLES + "{}[a] = 1",
    "a deep tuple as a key of a display": TUPLES + "{a: 1}",
    "a deep tuple in a set display": TUPLES + "{a}",
    "a deep tuple in a set comprehension": TUPLES + "{x for x in [a]}",
    "a deep tuple in a dict comprehension": TUPLES + "{x: 1 for x in [a]}",
    "a deep tuple in set()": TUPLES + "set([a])",
    "a deep tuple in dict()": TUPLES + "dict([(a, 1)])",
    "a deep tuple looked up in a dict": TUPLES + "{}.get(a)",
    "a deep tuple looked up in a set": TUPLES + "a in {1}",
    "a deep tuple added to a set": TUPLES + "set().add(a)",
    "a deep tuple in set.update": TUPLES + "set().update([a])",
    "a deep tuple set by default": TUPLES + "{}.setdefault(a, 1)",
    "a deep tuple in dict.update": TUPLES + "{}.update([(a, 1)])",
    "a deep tuple in an operator on keys": TUPLES + "{}.keys() | [a]",
    "a deep tuple among the items of a dict": TUPLES + "{1: a}.items() | {1: 2}.items()",
    "numbers with equal hashes": MODULUS + "s = set()\nfor i in range(9000):\n    s.add(i * m)",
    "numbers with equal hashes as keys": MODULUS + "d = {}\nfor i in range(9000):\n    d[i * m] = 1",
    "a long text as a key": TEXT + "d = {}\n" + FOREVER + "d[t] = 1",
    # Texts.
    "search": TEXT + f"s = 'a' * 500000 + 'b'\n{FOREVER}t.find(s)",
    "search in a shorter text": f"t = 'a' * 2499\ns = 'a' * 600 + 'b' + 'a' * 599\n{FOREVER}s in t",
    "search backwards": TEXT + f"s = 'a' * 250000 + 'b' + 'a' * 250000\n{FOREVER}t.rfind(s)",
    "split backwards": TEXT + f"s = 'a' * 250000 + 'b' + 'a' * 250000\n{FOREVER}t.rsplit(s)",
    "partition backwards": TEXT + f"s = 'a' * 250000 + 'b' + 'a' * 250000\n{FOREVER}t.rpartition(s)",
    "strip of many characters": TEXT + f"s = 'b' * 500000 + 'a'\n{FOREVER}t.strip(s)",
    "many prefixes": TEXT + f"s = ('a' * 999999 + 'b',) * 100000\n{FOREVER}t.startswith(s)",
    "upper case": "t = 'ŉ' * 900000\n" + FOREVER + "t.upper()",
    "title case": "t = 'é ' * 400000\n" + FOREVER + "t.title()",
    "lower case": TEXT + FOREVER + "t.lower()",
    "split at blanks": "t = 'a ' * 400000\n" + FOREVER + "t.split()",
    "split at blanks, a limited number of times": "t = 'a ' * 400000\n" + FOREVER + "t.split(None, 90000)",
    "split at line ends": "t = 'a\\n' * 400000\n" + FOREVER + "t.splitlines()",
    "split at rare line ends": "t = 'a\\u2028' * 400000\n" + FOREVER + "t.splitlines()",
    "count": TEXT + FOREVER + "t.count('a')",
    "replacement": TEXT + FOREVER + "t.replace('a', 'b')",
    "replacement, a limited number of times": TEXT + FOREVER + "t.replace('a', 'b' * 1000000, 1)",
    "join": "a = ['a' * 9] * 100000\n" + FOREVER + "''.join(a)",
    "f-string": TEXT + FOREVER + "f'{t}'",
    "slice of a text": TEXT + FOREVER + "t[1:]",
    "reversed text": TEXT + FOREVER + "t[::-1]",
    "concatenation": "t = 'a' * 500000\n" + FOREVER + "t + t",
    "repetition": FOREVER + "'a' * 1000000",
    "text of a text": "t = '\\n' * 400000\n" + FOREVER + "str([t])",
    "number of a text": TEXT + FOREVER + "float(t)",
    # Collections.
    "copy of a list": LIST + FOREVER + "a.copy()",
    "slice of a list": LIST + FOREVER + "a[1:]",
    "assignment to a slice": LIST + FOREVER + "a[0:1] = [1]",
    "assignment to a wide slice": LIST + FOREVER + "a[:] = a",
    "insertion": "a = [0] * 90000\n" + FOREVER + "a.insert(0, 1)",
    "removal at the front": LIST + FOREVER + "a.append(a.pop(0))",
    "reversal": LIST + FOREVER + "a.reverse()",
    "sort": LIST + FOREVER + "a.sort()",
    "concatenation of lists": "a = [0] * 50000\n" + FOREVER + "a + a",
    "repetition of lists": FOREVER + "[0] * 100000",
    "stars": LIST + FOREVER + "[*a]",
    "starred arguments": LIST + FOREVER + "max(*a)",
    "sum of lists": "a = [[0] * 1000] * 100\n" + FOREVER + "sum(a, [])",
    "operators on sets": "s = set(range(9000))\n" + FOREVER + "s & s",
    "operators on the keys of a dict": "d = {1: 2}\n" + FOREVER + "d.keys() | range(1000000)",
    "operators on keys and a stream": "{}.keys() | zip(range(1000000))",
    "union": "s = set(range(9000))\n" + FOREVER + "s.union(s)",
    "a dict of long pairs": "dict([range(1000000)])",
    "update of a dict by long pairs": FOREVER + "{}.update([range(1000000)])",
    "union of dicts": "d = {i: 1 for i in range(5000)}\n" + FOREVER + "d | d",
    "copy of a dict": "d = {i: 1 for i in range(5000)}\n" + FOREVER + "d.copy()",
    "a dict of a dict": "d = {i: 1 for i in range(5000)}\n" + FOREVER + "dict(d)",
    "zip of many lists": "a = [[0] * 1000] * 100000\nfor x in zip(*a):\n    pass",
    "print of many values": "p = bm25('a', k=1) * 100000\n" + FOREVER + "print(*p)",
    "print of a long list": "p = [0] * 100000\n" + FOREVER + "print(p)",
    "nested streams": "z = []\nfor i in range(9000):\n    z = zip(z)",
    "nested enumerations": "z = [1]\nfor i in range(9000):\n    z = enumerate(z)\nlist(z)",
    "streams in streams": "z = [1]\nfor i in range(9000):\n    z = zip(x for x in z)",
    # Many cheap operations in one step.
    "arithmetic in a while": FOREVER + "x = " + DENSE,
    "arithmetic in a for": "for i in range(20000):\n    x = " + DENSE,
    "arithmetic in a for over pairs": "for i, j in zip(range(20000), range(20000)):\n    x = " + DENSE,
    "arithmetic in a comprehension": f"[{DENSE} for i in range(20000)]",
    "arithmetic in a condition of a comprehension": f"[1 for i in range(20000) if {DENSE}]",
    "arithmetic in a set comprehension": f"{{len({DENSE}) for i in range(20000)}}",
    "arithmetic in a dict comprehension": f"{{1: {DENSE} for i in range(20000)}}",
    "arithmetic in a generator": f"sum(len({DENSE}) for i in range(20000))",
    "arithmetic in a function": f"def f():\n    return {DENSE}\n{FOREVER}f()",
    "arithmetic in a lambda": f"f = lambda: {DENSE}\n{FOREVER}f()",
    "texts of large numbers": f"n = 1\nfor i in range(300):\n    n = n * 10\n{FOREVER}x = f'{'{n}' * 1000}'",
    "a deep list in a reversed list": TWINS + "a in reversed([b])",
    "a wide tuple in a tuple as a key": "t = ((0,) * 100000,)\n" + FOREVER + "{}.get(t)",
    "a set whose order moves": "s = set([None])\nfor i in range(3000):\n    s.add(i)\n" + FOREVER + "any(s)",
    "a loop over a large set that ends at once": "s = set(range(3000))\n" + FOREVER + "any(s)",
    "fuse of many empty lists": "l = [[]] * 90\na = bm25('a', k=1)\n" + FOREVER + "fuse(a, *l)",
    "items of dicts of different length": "d = {i: 0 for i in range(2000)}\ne = d.copy()\ne[-1] = 0\n"
    "a = d.items()\nb = e.items()\n" + FOREVER + "a == b",
    "union with many empty lists": "l = [[]] * 100000\ns = set()\n" + FOREVER + "s.union(*l)",
    "equality of dicts with a wide key": "d = {(0,) * 100000: 1}\ne = {(0,) * 100000: 1}\n" + FOREVER + "d == e",
    "zip of many empty lists": "l = [[]] * 100000\n" + FOREVER + "zip(*l)",
    "zip of zips": "z = [zip(*[[0] * 9] * 99) for i in range(20)]\nlist(zip(*z))\n" + FOREVER + "pass",
    "join of many empty texts": "l = [''] * 100000\n" + FOREVER + "''.join(l)",
    "a chain of enumerations": "z = range(99999)\nfor i in range(900):\n    z = enumerate(z)\nlist(z)",
    "unique of a long list": "p = bm25('a', k=1) * 100000\nunique(p)",
}


IN_EACH_STEP = {
    "stars of short lists": "a = [0] * 999\n" + FOREVER + "x = [" + ", ".join(["*a"] * 90) + "]",
    "circles of short lists": f"a = [0] * 999\n{FOREVER}x = [" + ", ".join(["*a"] * 90) + "]\n    x.append(x)",
    "texts of fractions": "x = 1 / 3\n" + FOREVER + "y = f'" + "{x}" * 300 + "'",
    "texts of empty lists": "x = []\n" + FOREVER + "y = f'" + "{x}" * 300 + "'",
    "functions that are kept": "a = []\n" + FOREVER + "a.append([" + ", ".join(["lambda: 0"] * 300) + "])",
    "large lists that are kept": "b = [[] for i in range(300)]\na = []\nfor i in range(150):\n    a.append(b * 300)\n"
    + FOREVER
    + "x = [0]",
}


@pytest.mark.parametrize("source", IN_EACH_STEP.values(), ids=IN_EACH_STEP.keys())
def test_many_small_operations_in_a_step_are_paid(source):
    """What one step does a hundred times, and what the collector looks through, costs no more than other steps."""
    gc.collect()
    gc.freeze()  # as workers do
    try:
        excess = []
        for _ in range(5):  # a busy machine may be slow once
            step = step_s()
            started = time.process_time()
            outcome = run_program(source, "q", ProgramLimits(1, 1, 20_000, 4_000), Silent(), collect=gc.collect)
            excess.append((time.process_time() - started) / outcome.fuel / step / TIMES)
            if excess[-1] < 1:
                return
        pytest.fail(f"a unit of fuel takes {min(excess) * TIMES:.0f} times as long as a step of a plain loop")
    finally:
        gc.unfreeze()


def test_a_deep_call_costs_more_than_a_shallow_one():
    """How deep a call is, is counted from the top."""
    source = "def down(n):\n    return down(n - 1) if n else 0\n"
    shallow, deep = (run(f"{source}for i in range(9):\n    down({n})")[1].fuel for n in (9, 190))
    assert shallow == 1 + 9 * (1 + 10)
    assert deep > 9 * 191 * 4


@pytest.fixture(scope="module")
def allowed():
    """Processor seconds that this much fuel may take here, whatever the program does."""
    return 2 * step_s() * (FREE + TIMES * FUEL)


@pytest.mark.parametrize("source", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_a_program_takes_little_time_for_its_fuel(source, allowed):
    compile_program(source, 4_000)  # what that takes is bounded by the length of the text
    started = time.process_time()
    _, outcome = run(source, fuel=FUEL, calls=10**6)
    seconds = time.process_time() - started
    assert outcome.error is not None
    # A number or text of the wrong kind is an ordinary error; everything else must hit a budget.
    assert outcome.error.kind in ("budget_fuel", "budget_size", "budget_printed", "runtime"), outcome.error
    assert (outcome.error.kind == "runtime") == (source in ORDINARY), outcome.error
    assert seconds < allowed


ORDINARY = {OPERATIONS[name] for name in ("a dict of long pairs", "update of a dict by long pairs")}


def test_the_time_limit_can_fail(allowed):
    """Without fuel for it, the comparison of the twins takes time beyond all bounds."""
    small = TWINS.replace("30", "20")
    started = time.process_time()
    exec(small + "a == b")
    bare = time.process_time() - started
    assert bare * 2**10 > allowed  # for the ten levels that were left out
