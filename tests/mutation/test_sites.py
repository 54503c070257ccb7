"""Sites are addressed by path, edits leave the parent's tree alone, and the neighbours come in a known order."""

import ast
import itertools

import pytest
from hypothesis import given, settings
from program_strategies import profile, sources

from rpl.mutation.donors import Donors
from rpl.mutation.edits import REGISTERED, operator
from rpl.mutation.registry import mutate
from rpl.mutation.scheduling import PREFERENCES
from rpl.mutation.sites import replaced, sites
from rpl.programs.grammar import parse
from rpl.programs.printing import unparse

NESTED = "for p in bm25('a', k=1):\n    if p.text:\n        print(p)\n    print(1)"


@settings(profile, max_examples=25)
@given(sources)
def test_a_path_leads_to_its_site_and_replacing_it_changes_nothing_else(source: str) -> None:
    tree = parse(source).tree
    before = ast.dump(tree)
    for site in sites(tree, lambda site: True):
        node = tree
        for field, index in site.path:
            node = getattr(node, field) if index is None else getattr(node, field)[index]
        assert node is site.node
        assert ast.dump(replaced(tree, site.path, [site.node])) == before
        if isinstance(site.node, ast.Constant):
            edited = replaced(tree, site.path, [ast.Constant(value="other")])
            assert sum(a is not b for a, b in zip(_leaves(tree), _leaves(edited), strict=True)) == 1
    assert ast.dump(tree) == before


def _leaves(tree: ast.AST) -> list[ast.AST]:
    return [site.node for site in sites(tree, lambda site: not list(ast.iter_child_nodes(site.node)))]


@pytest.mark.parametrize(
    ("replacement", "expected"),
    [
        ([], "for p in bm25('a', k=1):\n    print(1)"),
        (ast.parse("x = 1\ny = 2").body, "for p in bm25('a', k=1):\n    x = 1\n    y = 2\n    print(1)"),
    ],
)
def test_a_statement_gives_way_to_any_number_of_statements(replacement: list[ast.AST], expected: str) -> None:
    tree = parse(NESTED).tree
    [site] = sites(tree, lambda site: isinstance(site.node, ast.If))
    assert (site.line, site.field, len(site.block), type(site.parent)) == (2, "body", 2, ast.For)
    assert unparse(replaced(tree, site.path, replacement)) == expected
    assert unparse(tree) == NESTED


STREAM = [
    ("query_edit", "line 1: query 'a' -> 'Lyon'"),
    ("bridge", "line 1: follow links(p)"),
    ("union", "line 1: also search for 'Lyon'"),
    ("spread", "line 1: search q for q in ['Chad', 'Mali']"),
    ("path", "line 1: follow links(p), then bm25(q.title + ' currency', k=1)"),
    ("sift", "line 1: k -> 20, only if 'Togo' in p.text"),
    ("change_k", "line 1: bm25 k 1 -> 2"),
    ("crossover", "line 4: append from a sibling: print(dense('b')[0])"),
    ("primitive_swap", "line 1: bm25 -> dense"),
    ("add_filter", "line 3: print only if 'Togo' in p.text"),
    ("insert_rerank", "line 1: rerank bm25('a', k=1)"),
    ("fuse", "line 1: fuse with the query question"),
    ("change_filter", "line 2: drop the condition p.text"),
    ("branch_guard", "line 1: if nothing is found, bm25(question, k=1)"),
    ("delete", "line 2: delete if p.text:"),
    ("query_edit", "line 1: query 'a' -> question"),
    ("bridge", "line 1: follow links(p, k=1)"),
    ("spread", "line 1: search q + ' currency' for q in ['Chad', 'Mali']"),
    ("path", "line 1: follow links(p), then bm25('Borders of ' + q.title, k=1)"),
    ("sift", "line 1: k -> 10, only if 'Togo' in p.text"),
    ("change_k", "line 1: bm25 k 1 -> 3"),
    ("crossover", "line 1: replace by a sibling's print(dense('b')[0])"),
    ("primitive_swap", "line 1: fuse bm25 and dense"),
    ("add_filter", "line 3: print only if 'Togo' in p.title"),
    ("fuse", "line 1: fuse with the query 'Lyon'"),
    ("change_filter", "line 2: invert p.text"),
    ("branch_guard", "line 1: if nothing is found, bm25('Lyon', k=1)"),
    ("delete", "line 4: delete print(1)"),
]
"""The first neighbours of `NESTED`. Recorded searches and results depend on this order: change it knowingly."""


def test_the_neighbours_come_in_this_order() -> None:
    donors = Donors(
        ("Lyon",), ("Togo",), ("currency",), ("Chad", "Mali"), ("Borders of",), (parse("print(dense('b')[0])"),)
    )
    found = [(m.operator, m.edit) for m in itertools.islice(mutate(parse(NESTED), donors), len(STREAM))]
    assert found == STREAM


def test_statements_of_the_named_lines_are_edited_first() -> None:
    parent = parse("print(bm25('a'))\nfor p in bm25('b', k=1):\n    print(p)")
    donors = Donors(("Lyon", "Porto"))

    def lines_of(*lines: int) -> list[str]:
        return [m.edit.split(":")[0] for m in mutate(parent, donors, ["query_edit"], lines=lines)]

    assert lines_of() == ["line 1", "line 2"] * 3
    assert lines_of(2) == ["line 2"] * 3 + ["line 1"] * 3
    assert lines_of(1, 2) == ["line 1"] * 3 + ["line 2"] * 3
    assert lines_of(3) == lines_of(), "no query stands in that statement"
    inside = mutate(parent, Donors(constants=("x",)), ["add_filter", "change_k"], lines=(2,))
    assert next(inside).edit == "line 2: bm25 k 1 -> 2"
    assert next(inside).edit == "line 3: print only if 'x' in p.text"


def test_tiers_come_from_the_operators_themselves() -> None:
    assert PREFERENCES["lost_in_rerank"] == (
        ("change_k", "unfuse", "remove_rerank"),
        ("query_edit", "print_passage", "print_budget"),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"turn": 10}, "query_edit has turn 10 already"),
        ({"turn": 5, "name": "fuse"}, "fuse has turn 130 already"),
        ({"turn": 5, "first": "never"}, r"unknown classes \['never'\]; there are crashed"),
    ],
)
def test_an_operator_that_would_not_be_found_is_refused(arguments: dict, message: str) -> None:
    before = dict(REGISTERED)
    with pytest.raises(ValueError, match=message):
        operator(**arguments)(lambda program, donors: iter(()))
    assert before == REGISTERED
