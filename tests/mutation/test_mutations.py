import itertools

import pytest
from hypothesis import given, settings
from program_strategies import profile, sources

from rpl.core.errors import ConfigError
from rpl.mutation.distance import edit_distance
from rpl.mutation.donors import Donors
from rpl.mutation.registry import OPERATORS, mutate
from rpl.mutation.syntax import unbound_names
from rpl.programs.grammar import Program, canonical, parse

SEED = parse("for p in bm25(question, k=1):\n    print(p)")
DONORS = Donors(
    queries=("Chad", "Lyon"),
    constants=("Togo",),
    words=("currency",),
    names=("Chad", "Mali"),
    heads=("Borders of",),
    siblings=(parse("hits = bm25('Niger', k=3)\nfor h in hits: print(h)"), parse("print(dense('Mali')[0])")),
)


@settings(profile, max_examples=25)
@given(sources)
def test_mutants_stay_in_the_grammar_and_leave_the_parent_alone(source: str) -> None:
    parent = parse(source)
    before = parent.source
    mutants = list(itertools.islice(mutate(parent, DONORS), 50))
    assert parent.source == before
    assert parse(before) == parent
    for mutant in mutants:
        assert parse(mutant.program.source) == mutant.program
        assert unbound_names(mutant.program.tree) <= unbound_names(parent.tree)
        assert "\n" not in mutant.edit
    assert parent not in {m.program for m in mutants}
    assert len({m.program for m in mutants}) == len(mutants)
    assert [m.program for m in itertools.islice(mutate(parent, DONORS), 50)] == [m.program for m in mutants]


BEFORE_AFTER = [
    ("query_edit", "print(bm25(question))", "print(bm25('Lyon'))"),
    ("query_edit", "print(bm25('a'))", "print(bm25(question))"),
    ("query_edit", "print(rerank(query='a', passages=bm25('b')))", "print(rerank(query='Chad', passages=bm25('b')))"),
    ("query_edit", "for x in ['a', 'b']:\n    print(bm25(x))", "for x in ['a', 'Lyon']:\n    print(bm25(x))"),
    ("query_edit", "t = 'a'\nprint(bm25(t))", "t = 'Chad'\nprint(bm25(t))"),
    ("primitive_swap", "print(bm25('a', k=2))", "print(dense('a', k=2))"),
    ("primitive_swap", "print(dense('a', 2))", "print(bm25('a', 2))"),
    ("primitive_swap", "print(bm25('a', k=2))", "print(fuse(bm25('a', k=2), dense('a', k=2), k=2))"),
    ("change_k", "print(bm25('a', 3))", "print(bm25('a', 5))"),
    ("change_k", "print(bm25('a'))", "print(bm25('a', k=20))"),
    ("change_k", "print(rerank('a', x, 5))", "print(rerank('a', x, 8))"),
    ("change_k", "print(links(p, k=1))", "print(links(p, k=2))"),
    ("insert_rerank", "print(bm25('a', k=3))", "print(rerank('a', bm25('a', k=20), k=3))"),
    ("remove_rerank", "print(rerank('a', bm25('b'), k=3))", "print(bm25('b'))"),
    ("fuse", "print(bm25('a', k=3))", "print(fuse(bm25('a', k=3), bm25('Chad', k=3), k=3))"),
    ("unfuse", "print(fuse(bm25('a'), dense('b'), k=2))", "print(dense('b'))"),
    ("bridge", "for p in x:\n    print(p)", "for p in x:\n    print(p)\n    for q in links(p):\n        print(q)"),
    (
        "bridge",
        "for p in bm25('a', k=1):\n    print(p)",
        "for p in bm25('a', k=1):\n    print(p)\n    for q in bm25(p.title + ' currency', k=1):\n        print(q)",
    ),
    ("bridge", "print(bm25('a')[0])", "print(bm25('a')[0])\nfor p in links(bm25('a')[0], k=1):\n    print(p)"),
    ("bridge", "print(bm25('a'))", "print(bm25('a'))\nfor p in links(bm25('a')[0], k=3):\n    print(p)"),
    (
        "spread",
        "for p in bm25('a', k=1):\n    print(p)",
        "for q in ['Chad', 'Mali']:\n    for p in bm25(q + ' currency', k=1):\n        print(p)",
    ),
    (
        "spread",
        "for p in bm25('a', k=1):\n    print(p)",
        "for q in ['Chad', 'Mali']:\n    for p in bm25('Borders of ' + q, k=1):\n        print(p)",
    ),
    (
        "path",
        "for p in bm25('a', k=1):\n    print(p)",
        (
            "for p in bm25('a', k=1):\n    print(p)\n    for q in links(p):\n"
            "        for r in bm25('Borders of ' + q.title, k=1):\n            print(r)"
        ),
    ),
    (
        "sift",
        "for p in bm25('a', k=1):\n    print(p)",
        "for p in bm25('a', k=10):\n    if 'Togo' in p.text:\n        print(p)",
    ),
    ("union", "print(bm25('a'))", "print(bm25('a'))\nprint(bm25('Lyon'))"),
    ("print_passage", "for p in bm25('a'):\n    x = p.text", "for p in bm25('a'):\n    print(p)\n    x = p.text"),
    ("print_passage", "for p in bm25('a'):\n    print(p.title)", "for p in bm25('a'):\n    print(p)"),
    ("print_passage", "x = bm25('a')", "x = bm25('a')\nfor p in x:\n    print(p)"),
    ("add_filter", "for p in x:\n    print(p)", "for p in x:\n    if 'Togo' in p.text:\n        print(p)"),
    ("add_filter", "for p in x:\n    print(p)", "for p in x:\n    if 'Togo' in p.title:\n        print(p)"),
    ("add_filter", "if 'a' in x:\n    print(1)", "if 'Togo' in x:\n    print(1)"),
    ("change_filter", "if x:\n    print(1)", "print(1)"),
    ("change_filter", "if x:\n    print(1)", "if not x:\n    print(1)"),
    ("change_filter", "if not x:\n    print(1)", "if x:\n    print(1)"),
    ("change_filter", "if 'a' in x:\n    print(1)", "if 'a' not in x:\n    print(1)"),
    ("change_filter", "y = [p for p in x if p]", "y = [p for p in x]"),
    ("print_budget", "for p in links(x):\n    print(p)", "for p in links(x)[:2]:\n    print(p)"),
    ("print_budget", "for p in x:\n    print(p)", "for p in unique(x):\n    print(p)"),
    ("print_budget", "for p in x[:2]:\n    print(p)", "for p in x[:5]:\n    print(p)"),
    ("print_budget", "for p in x[:2]:\n    print(p)", "for p in x:\n    print(p)"),
    ("branch_guard", "x = bm25('a', k=2)", "x = bm25('a', k=2) or bm25(question, k=2)"),
    ("loop_bound", "for i in range(4):\n    print(i)", "for i in range(5):\n    print(i)"),
    ("loop_bound", "while x:\n    print(x)\n    break", "while x:\n    print(x)"),
    ("crossover", "print(bm25('a'))", "print(bm25('a'))\nprint(dense('Mali')[0])"),
    ("crossover", "print(bm25('a'))", "print(dense('Mali')[0])"),
    ("crossover", "print(bm25('a'))", "print(bm25('Niger', k=3))"),
    ("delete", "x = 1\nprint(2)", "print(2)"),
    ("hoist", "print(bm25('a'), dense('a'))", "query = 'a'\nprint(bm25(query), dense(query))"),
]


@pytest.mark.parametrize(("operator", "before", "after"), BEFORE_AFTER)
def test_operator_makes_the_edit(operator: str, before: str, after: str) -> None:
    made = {mutant.program.source for mutant in mutate(parse(before), DONORS, [operator])}
    assert canonical(after) in made


def test_every_operator_has_an_example() -> None:
    assert {operator for operator, _, _ in BEFORE_AFTER} == set(OPERATORS)


UNCHANGED = [
    ("query_edit", "x = len('a')"),
    ("bridge", "for i in range(3):\n    print(i)"),
    ("union", "x = bm25('a')"),
    ("spread", "print(bm25('a'))"),
    ("path", "for i in range(3):\n    print(i)"),
    ("sift", "for p in links(x):\n    print(p)"),
    ("change_k", "x = fuse(a, b)"),
    ("remove_rerank", "x = bm25('a')"),
    ("delete", "print(1)"),
    ("hoist", "x = bm25('a')"),
    ("insert_rerank", "x = rerank('a', bm25('a'))"),
    ("print_budget", "for p in bm25('a', k=1):\n    print(p)"),
]


@pytest.mark.parametrize(("operator", "source"), UNCHANGED)
def test_operator_leaves_alone_what_it_does_not_fit(operator: str, source: str) -> None:
    assert list(mutate(parse(source), DONORS, [operator])) == []


def test_deletion_never_unbinds_a_name_and_takes_dead_code_first() -> None:
    parent = parse("x = bm25('a')\nfor p in x:\n    print(p)\nunused = 1")
    made = [mutant.program.source for mutant in mutate(parent, DONORS, ["delete"])]
    assert made == ["x = bm25('a')\nfor p in x:\n    print(p)", "x = bm25('a')\nunused = 1"]


def test_operators_take_turns() -> None:
    first = [mutant.operator for mutant in itertools.islice(mutate(SEED, DONORS), 9)]
    assert len(set(first)) == 9
    assert first == [name for name in OPERATORS if name in first]


def test_most_edits_are_small() -> None:
    parent = parse("for p in bm25('Lyon', k=1):\n    print(p)\n    for q in links(p, k=1):\n        print(q)")
    for operator in ("query_edit", "change_k"):
        for mutant in mutate(parent, DONORS, [operator]):
            assert edit_distance(parent.source, mutant.program.source) <= 4
    with pytest.raises(AssertionError):  # a union is not that small: the bound above can fail
        assert all(edit_distance(parent.source, m.program.source) <= 4 for m in mutate(parent, DONORS, ["union"]))


def test_primitives_can_be_left_out_but_stay_where_they_were() -> None:
    assert any("dense" in m.program.source for m in mutate(SEED, DONORS))
    assert not any("dense" in m.program.source for m in mutate(SEED, DONORS, without=["dense", "rerank"]))
    parent = parse("print(dense('a'))")
    assert any("dense('Lyon')" in m.program.source for m in mutate(parent, DONORS, without=["dense"]))


@pytest.mark.parametrize("text", ["Owl </program> Guide", "Owl </answer><answer>42", "<result>"])
def test_what_no_transcript_can_hold_is_no_neighbour_and_is_counted(text: str) -> None:
    left_out: set[str] = set()
    donors = Donors(queries=(text, "Lyon"))
    made = [m.program.source for m in mutate(SEED, donors, ["query_edit"], unwritable=left_out)]
    assert made == ["for p in bm25('Lyon', k=1):\n    print(p)"]
    assert left_out == {f"for p in bm25('{text}', k=1):\n    print(p)"}


def test_an_unknown_operator_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"unknown mutation operators \['swop'\]; there are query_edit, bridge"):
        mutate(SEED, DONORS, ["swop"])


REACHABLE = {
    "for p in bm25('Currency of Chad', k=1): print(p)": (1, ("Currency of Chad",), ()),
    "for p in bm25('Lyon', k=1):\n    print(p)\n    for q in links(p, k=1):\n        print(q)": (2, ("Lyon",), ()),
    "for p in bm25('Lyon', k=1): print(p)\nfor p in bm25('Porto', k=1): print(p)": (2, ("Lyon", "Porto"), ()),
    "for p in bm25('Borders of Chad', k=1):\n    print(p)\n    for q in links(p): print(q)": (
        2,
        ("Borders of Chad",),
        (),
    ),
    "for p in bm25('city Togo', k=10):\n    if 'Togo' in p.text:\n        print(p)": (2, ("city Togo",), ("Togo",)),
    "for p in bm25('Lyon', k=1):\n    print(p)\n    for q in links(p, k=1):\n        print(q)\n"
    "        for r in links(q, k=1): print(r)": (3, ("Lyon",), ()),
}


@pytest.mark.parametrize("target", REACHABLE)
def test_the_seed_reaches_it_in_few_edits(target: str) -> None:
    edits, queries, constants = REACHABLE[target]
    donors = Donors(queries=queries, constants=constants)
    goal = parse(target)
    assert _shortest(SEED, goal, donors, edits) == edits


def _shortest(start: Program, goal: Program, donors: Donors, limit: int) -> int | None:
    """Breadth-first, but only through programs that are no further from the goal than their parent."""
    frontier = {start}
    for depth in range(1, limit + 1):
        reached = set()
        for parent in frontier:
            for mutant in mutate(parent, donors):
                if mutant.program == goal:
                    return depth
                if edit_distance(mutant.program.source, goal.source) < edit_distance(parent.source, goal.source):
                    reached.add(mutant.program)
        frontier = reached
    return None
