"""Operators on whole statements: crossover with sibling programs, and deletion."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rpl.mutation.donors import Donors
from rpl.mutation.edits import Edit, operator
from rpl.mutation.sites import Site, sites
from rpl.mutation.syntax import SOURCES, called, contains, is_search, show
from rpl.programs.grammar import Program


@operator(turn=90, first="crashed nothing_fetched part_fetched", second="not_printed")
def crossover(program: Program, donors: Donors) -> Iterator[Edit]:
    """Takes a statement that searches, or one search call, from a sibling program."""
    tree = program.tree
    tops, searches = sites(tree, _is_top_level), sites(tree, is_search)
    last, end = tops[-1], program.source.count("\n") + 1
    for sibling in donors.siblings:
        if sibling == program:
            continue
        theirs = sibling.tree
        for statement in theirs.body:
            if not contains(statement, SOURCES):
                continue
            yield Edit(last, [last.node, statement], f"append from a sibling: {show(statement)}", line=end)
            for site in tops:
                yield Edit(site, statement, f"replace by a sibling's {show(statement)}")
        for call in sites(theirs, is_search):
            for site in searches:
                yield Edit(site, call.node, f"search {show(site.node)} -> {show(call.node)}")


def _is_top_level(site: Site) -> bool:
    return site.is_statement and isinstance(site.parent, ast.Module)


@operator(turn=200, first="crashed", second="over_budget")
def delete(program: Program, donors: Donors) -> Iterator[Edit]:
    """Removes a statement, dead ones first."""
    tree = program.tree
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for site in sorted(sites(tree, _is_deletable), key=lambda site: not _is_dead(site.node, read)):
        yield Edit(site, [], f"delete {show(site.node)}")


def _is_deletable(site: Site) -> bool:
    return site.is_statement and len(site.block) > 1


def _is_dead(node: ast.AST, read: set[str]) -> bool:
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id not in read for target in node.targets)
    if isinstance(node, ast.FunctionDef):
        return node.name not in read
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and called(node.value) is None)
