"""Operators on query texts: what is asked for, and under which name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from rpl.mutation.donors import Donors
from rpl.mutation.edits import Edit, operator
from rpl.mutation.sites import Site, replaced, sites
from rpl.mutation.syntax import QUERIED, argument, called, expression, is_search, name, show, statements
from rpl.programs.grammar import Program
from rpl.programs.primitives import SEARCHES


def _is_query(site: Site) -> bool:
    """The query of a call, or a string that is assigned or listed and may become one."""
    parent = site.parent
    if not isinstance(site.node, ast.expr):
        return False
    call = site.ancestors[-2] if isinstance(parent, ast.keyword) else parent
    if called(call) in QUERIED and argument(call, "query") is site.node:
        return True
    if not (isinstance(site.node, ast.Constant) and isinstance(site.node.value, str)):
        return False
    if isinstance(parent, ast.Assign):
        return True
    return isinstance(parent, ast.List | ast.Tuple) and not any(
        isinstance(a, ast.Subscript | ast.Compare) for a in site.ancestors
    )


@operator(
    turn=10,
    first="crashed nothing_fetched part_fetched",
    second="lost_in_rerank over_budget",
)
def query_edit(program: Program, donors: Donors) -> Iterator[Edit]:
    """Replaces a query by a donor text or by the question."""
    places = sites(program.tree, _is_query)
    for text in (*(repr(query) for query in donors.queries), "question"):
        for site in places:
            yield Edit(site, expression(text), f"query {show(site.node)} -> {text}")


@operator(turn=210)
def hoist(program: Program, donors: Donors) -> Iterator[Edit]:
    """Gives a query text that stands in several searches a name, so that one edit changes them all."""
    tree = program.tree
    queries = [argument(site.node, "query") for site in sites(tree, is_search)]
    counts = Counter(q.value for q in queries if isinstance(q, ast.Constant) and isinstance(q.value, str))
    taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    variable = next(n for n in ("query", *(f"query{i}" for i in range(2, 1000))) if n not in taken)
    for text, count in counts.items():
        if count < 2:
            continue
        edited = tree
        for site in sites(tree, lambda site, text=text: _is_query_text(text, site)):  # type: ignore[misc]
            edited = replaced(edited, site.path, [name(variable)])
        named = ast.Module([*statements(f"{variable} = {text!r}"), *edited.body], [])
        yield Edit(Site(tree, (), ()), named, f"name the query {text!r}")


def _is_query_text(text: str, site: Site) -> bool:
    if not (isinstance(site.node, ast.Constant) and site.node.value == text):
        return False
    return any(called(a) in SEARCHES and argument(a, "query") is site.node for a in site.ancestors)
