"""Operators on single searches: which primitive, how many passages, and what to do where nothing is found."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rpl.mutation.donors import Donors
from rpl.mutation.edits import Edit, operator
from rpl.mutation.sites import Site, sites
from rpl.mutation.syntax import (
    COUNTED,
    K_VALUES,
    argument,
    called,
    calling,
    constant_k,
    expression,
    is_search,
    name,
    show,
    with_argument,
)
from rpl.programs.grammar import Program
from rpl.programs.primitives import PASSAGE_LISTS, SEARCHES


@operator(turn=100, first="crashed")
def primitive_swap(program: Program, donors: Donors) -> Iterator[Edit]:
    """Replaces `bm25` by `dense` or the reverse, or either by the fusion of both."""
    places = [(site, _swapped(site.node)) for site in sites(program.tree, is_search)]
    for site, other in places:
        yield Edit(site, other, f"{called(site.node)} -> {called(other)}")
    for site, other in places:
        yield Edit(site, calling("fuse", site.node, other, k=argument(site.node, "k")), "fuse bm25 and dense")


def _swapped(call: ast.Call) -> ast.Call:
    return ast.Call(name("dense" if called(call) == "bm25" else "bm25"), list(call.args), list(call.keywords))


def _has_k(site: Site) -> bool:
    return called(site.node) in COUNTED and bool(site.node.args)


@operator(
    turn=70,
    first="lost_in_rerank over_budget",
    second="crashed nothing_fetched part_fetched not_printed",
)
def change_k(program: Program, donors: Donors) -> Iterator[Edit]:
    """Asks a call for more passages, or for fewer."""
    choices = [
        (site, constant_k(site.node), k)
        for site in sites(program.tree, _has_k)
        for k in K_VALUES
        if k != constant_k(site.node)
    ]
    for site, old, k in sorted(choices, key=lambda choice: _distance_in_k(choice[1], choice[2])):
        edited = with_argument(site.node, "k", ast.Constant(value=k))
        yield Edit(site, edited, f"{called(site.node)} k {old} -> {k}")


def _distance_in_k(old: int | None, new: int) -> tuple[bool, int]:
    """Larger values first, nearest first."""
    old = old or 0
    return (new < old, abs(new - old))


def _is_list_call(site: Site) -> bool:
    return called(site.node) in PASSAGE_LISTS and not isinstance(site.parent, ast.BoolOp)


@operator(turn=160, second="crashed")
def branch_guard(program: Program, donors: Donors) -> Iterator[Edit]:
    """Falls back to another search where one finds nothing: `bm25('a') or bm25(question)`."""
    places = sites(program.tree, _is_list_call)
    for text in ("question", *(repr(query) for query in donors.queries[:3])):
        for site in places:
            searches = called(site.node) in SEARCHES
            if searches and text == show(argument(site.node, "query")):
                continue
            k = constant_k(site.node) if searches else None
            fallback = f"bm25({text}, k={k or 3})"
            either = ast.BoolOp(op=ast.Or(), values=[site.node, expression(fallback)])
            yield Edit(site, either, f"if nothing is found, {fallback}")
