"""Operators that write an idiom of several steps in one edit: their single steps are of no use without one another."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rpl.mutation.donors import Donors
from rpl.mutation.sites import (
    SEARCHES,
    Edit,
    Site,
    argument,
    called,
    expression,
    fresh_name,
    is_statement,
    passage_loop,
    rewrite,
    sites,
    statements,
    with_argument,
)
from rpl.programs.grammar import Program

_SPREAD_NAMES = 4
_SIFT_POOLS = (20, 10)
_SIFT_CONSTANTS = 6


def spread(program: Program, donors: Donors) -> Iterator[Edit]:
    """Repeats a search for each name of the question: `for q in ['Chad', 'Mali']: for p in bm25(q + ' area')`."""
    if len(donors.names) < 2:
        return
    new, names = fresh_name(program.tree), repr(list(donors.names[:_SPREAD_NAMES]))
    for query in (new, *_around(new, donors)):
        for i, site in enumerate(sites(program.tree, _is_searching_loop)):
            tree = rewrite(program, _is_searching_loop, i, _for_each, new, names, query)
            yield Edit(tree, f"line {site.line}: search {query} for {new} in {names}")


def _around(name: str, donors: Donors) -> list[str]:
    """Queries about a name: with a word of the question behind it, or with the beginning of a title before it."""
    behind = [f"{name} + {' ' + word!r}" for word in donors.words]
    before = [f"{head + ' '!r} + {name}" for head in donors.heads]
    return [*behind[:1], *before, *behind[1:]]


def _is_searching_loop(site: Site) -> bool:
    node = site.node
    if not (is_statement(site) and isinstance(node, ast.For) and isinstance(node.target, ast.Name)):
        return False
    return called(node.iter) in SEARCHES and argument(node.iter, "query") is not None


def _for_each(loop: ast.AST, name: str, names: str, query: str) -> ast.For:
    assert isinstance(loop, ast.For)
    with_argument(loop.iter, "query", expression(query))
    [outer] = statements(f"for {name} in {names}:\n    pass")
    assert isinstance(outer, ast.For)
    outer.body = [loop]
    return outer


def path(program: Program, donors: Donors) -> Iterator[Edit]:
    """Follows the links of each passage of a loop, and searches from the titles found there."""
    new, last = fresh_name(program.tree), fresh_name(program.tree, number=1)
    for query in _around(f"{new}.title", donors):
        search = f"bm25({query}, k=1)"
        for i, site in enumerate(sites(program.tree, passage_loop)):
            name = site.node.target.id
            text = f"for {new} in links({name}):\n    for {last} in {search}:\n        print({last})"
            tree = rewrite(program, passage_loop, i, _with_tail, text)
            yield Edit(tree, f"line {site.line}: follow links({name}), then {search}")


def _with_tail(loop: ast.AST, text: str) -> ast.AST:
    assert isinstance(loop, ast.For)
    loop.body += statements(text)
    return loop


def sift(program: Program, donors: Donors) -> Iterator[Edit]:
    """Searches wide and prints only the passages that name a constant."""
    for pool in _SIFT_POOLS:
        for constant in donors.constants[:_SIFT_CONSTANTS]:
            for i, site in enumerate(sites(program.tree, _is_searching_loop)):
                test = f"{constant!r} in {site.node.target.id}.text"
                tree = rewrite(program, _is_searching_loop, i, _sifted, pool, test)
                yield Edit(tree, f"line {site.line}: k -> {pool}, only if {test}")


def _sifted(loop: ast.AST, pool: int, test: str) -> ast.For:
    assert isinstance(loop, ast.For)
    with_argument(loop.iter, "k", ast.Constant(value=pool))
    loop.body = [ast.If(test=expression(test), body=loop.body, orelse=[])]
    return loop
