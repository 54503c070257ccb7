"""Operators on whole statements: crossover with sibling programs, deletion, hoisting."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import partial

from rpl.mutation.donors import Donors
from rpl.mutation.sites import (
    Edit,
    Site,
    argument,
    called,
    contains,
    is_search,
    is_statement,
    put,
    rewrite,
    show,
    sites,
    statements,
)
from rpl.programs.grammar import Program


def _is_top_level(site: Site) -> bool:
    return is_statement(site) and isinstance(site.ancestors[-1], ast.Module)


def crossover(program: Program, donors: Donors) -> Iterator[Edit]:
    """Takes a statement that searches, or one search call, from a sibling program."""
    last = len(program.tree.body) - 1
    searches = sites(program.tree, is_search)
    for sibling in donors.siblings:
        if sibling == program:
            continue
        for statement in sibling.tree.body:
            if not contains(statement, ("bm25", "dense", "read")):
                continue
            tree = rewrite(program, _is_top_level, last, _and_then, statement)
            yield Edit(tree, f"line {_end(program)}: append from a sibling: {show(statement)}")
            for i, site in enumerate(sites(program.tree, _is_top_level)):
                tree = rewrite(program, _is_top_level, i, put, statement)
                yield Edit(tree, f"line {site.line}: replace by a sibling's {show(statement)}")
        for call in sites(sibling.tree, is_search):
            for i, site in enumerate(searches):
                tree = rewrite(program, is_search, i, put, call.node)
                yield Edit(tree, f"line {site.line}: search {show(site.node)} -> {show(call.node)}")


def _and_then(statement: ast.AST, following: ast.AST) -> list[ast.AST]:
    return [statement, following]


def _end(program: Program) -> int:
    return program.source.count("\n") + 1


def _is_deletable(site: Site) -> bool:
    return is_statement(site) and len(site.block) > 1


def delete(program: Program, donors: Donors) -> Iterator[Edit]:
    """Removes a statement, dead ones first."""
    tree = program.tree
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    places = list(enumerate(sites(tree, _is_deletable)))
    for i, site in sorted(places, key=lambda place: not _is_dead(place[1].node, read)):
        yield Edit(rewrite(program, _is_deletable, i, put, []), f"line {site.line}: delete {show(site.node)}")


def _is_dead(node: ast.AST, read: set[str]) -> bool:
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id not in read for target in node.targets)
    if isinstance(node, ast.FunctionDef):
        return node.name not in read
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and called(node.value) is None)


def hoist(program: Program, donors: Donors) -> Iterator[Edit]:
    """Gives a query text that stands in several searches a name, so that one edit changes them all."""
    tree = program.tree
    queries = [argument(site.node, "query") for site in sites(tree, is_search)]
    counts = Counter(q.value for q in queries if isinstance(q, ast.Constant) and isinstance(q.value, str))
    taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    name = next(n for n in ("query", *(f"query{i}" for i in range(2, 1000))) if n not in taken)
    for text, count in counts.items():
        if count < 2:
            continue
        edited = program.tree
        for site in sites(edited, partial(_is_query_text, text)):
            site.splice([ast.Name(id=name, ctx=ast.Load())])
        edited.body[:0] = statements(f"{name} = {text!r}")
        yield Edit(edited, f"line 1: name the query {text!r}")


def _is_query_text(text: str, site: Site) -> bool:
    if not (isinstance(site.node, ast.Constant) and site.node.value == text):
        return False
    return any(called(a) in ("bm25", "dense") and argument(a, "query") is site.node for a in site.ancestors)
