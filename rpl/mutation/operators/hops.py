"""Operators that add a search to what a program finds: along links, from titles, for other names or other queries."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rpl.mutation.donors import Donors
from rpl.mutation.edits import Edit, operator
from rpl.mutation.sites import Site, replaced, sites
from rpl.mutation.syntax import (
    argument,
    called,
    contains,
    expression,
    fresh_names,
    is_passage_loop,
    is_search,
    is_searching_loop,
    printed,
    show,
    statements,
    with_argument,
    with_body,
)
from rpl.programs.grammar import Program
from rpl.programs.primitives import PASSAGE_LISTS, PRIMITIVES

_UNION_QUERIES = 16
_FOLLOW_UP_WORDS = 4
_SPREAD_NAMES = 4


@operator(turn=20, first="part_fetched", second="crashed nothing_fetched not_printed")
def bridge(program: Program, donors: Donors) -> Iterator[Edit]:
    """Follows each passage of a loop to the next: along its links, or by a search that starts from its title."""
    tree = program.tree
    new = next(fresh_names(tree))
    steps = ["links({p})", "links({p}, k=1)", "links({p}, k=3)"]
    steps += [f"bm25({{p}}.title + {' ' + word!r}, k=1)" for word in donors.words[:_FOLLOW_UP_WORDS]]
    steps += ["bm25({p}.title, k=3)"]
    loops, prints = sites(tree, is_passage_loop), sites(tree, _is_direct_print)
    for step in steps:
        for site in loops:
            source = step.format(p=site.node.target.id)
            inner = statements(f"for {new} in {source}:\n    print({new})")
            yield Edit(site, with_body(site.node, [*site.node.body, *inner]), f"follow {source}")
        for site in prints:
            [value] = printed(site)
            found = f"{show(value)}[0]" if called(value) in PASSAGE_LISTS else show(value)
            source = step.format(p=found)
            after = statements(f"for {new} in {source}:\n    print({new})")
            yield Edit(site, [site.node, *after], f"follow {source}")


def _is_direct_print(site: Site) -> bool:
    """`print(bm25(...))`, `print(bm25(...)[0])` or `print(read(...))` as a statement."""
    args = printed(site)
    if len(args) != 1:
        return False
    value = args[0].value if isinstance(args[0], ast.Subscript) else args[0]
    return called(value) in PRIMITIVES


@operator(turn=30, first="part_fetched", second="nothing_fetched")
def union(program: Program, donors: Donors) -> Iterator[Edit]:
    """Repeats a statement that searches and prints, with another query."""
    blocks = [(site, sites(site.node, is_search)[0]) for site in sites(program.tree, _is_retrieval_block)]
    for query in donors.queries[:_UNION_QUERIES]:
        for site, search in blocks:
            if show(argument(search.node, "query")) == repr(query):
                continue
            asked = with_argument(search.node, "query", ast.Constant(value=query))
            twin = replaced(site.node, search.path, [asked])
            yield Edit(site, [site.node, twin], f"also search for {query!r}", line=search.line)


def _is_retrieval_block(site: Site) -> bool:
    if not (site.is_statement and isinstance(site.parent, ast.Module)):
        return False
    return bool(sites(site.node, is_search)) and contains(site.node, ("print",))


@operator(turn=40, first="nothing_fetched part_fetched")
def spread(program: Program, donors: Donors) -> Iterator[Edit]:
    """Repeats a search for each name of the question: `for q in ['Chad', 'Mali']: for p in bm25(q + ' area')`."""
    if len(donors.names) < 2:
        return
    tree = program.tree
    new, names = next(fresh_names(tree)), repr(list(donors.names[:_SPREAD_NAMES]))
    loops = sites(tree, is_searching_loop)
    for query in (new, *_around(new, donors)):
        for site in loops:
            [outer] = statements(f"for {new} in {names}:\n    pass")
            assert isinstance(outer, ast.For)
            loop = with_body(site.node, site.node.body)
            loop.iter = with_argument(loop.iter, "query", expression(query))
            yield Edit(site, with_body(outer, [loop]), f"search {query} for {new} in {names}")


@operator(turn=50, first="part_fetched", second="nothing_fetched")
def path(program: Program, donors: Donors) -> Iterator[Edit]:
    """Follows the links of each passage of a loop, and searches from the titles found there."""
    tree = program.tree
    names = fresh_names(tree)
    new, last = next(names), next(names)
    loops = sites(tree, is_passage_loop)
    for query in _around(f"{new}.title", donors):
        search = f"bm25({query}, k=1)"
        for site in loops:
            variable = site.node.target.id
            tail = statements(f"for {new} in links({variable}):\n    for {last} in {search}:\n        print({last})")
            yield Edit(site, with_body(site.node, [*site.node.body, *tail]), f"follow links({variable}), then {search}")


def _around(expression_: str, donors: Donors) -> list[str]:
    """Queries about a name: with a word of the question behind it, or with the beginning of a title before it."""
    behind = [f"{expression_} + {' ' + word!r}" for word in donors.words]
    before = [f"{head + ' '!r} + {expression_}" for head in donors.heads]
    return [*behind[:1], *before, *behind[1:]]
