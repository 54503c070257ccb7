"""Operators on conditions: which of the passages are printed."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from rpl.mutation.donors import Donors
from rpl.mutation.edits import Edit, operator
from rpl.mutation.sites import Site, sites
from rpl.mutation.syntax import expression, is_searching_loop, printed, show, with_argument, with_body
from rpl.programs.grammar import Program

_FILTER_CONSTANTS = 8
_SIFT_POOLS = (20, 10)
_SIFT_CONSTANTS = 6
_OPPOSITES = {ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}


@operator(turn=110, first="over_budget")
def add_filter(program: Program, donors: Donors) -> Iterator[Edit]:
    """Prints a passage only if its text or title names a constant; or exchanges the constant of a filter."""
    tree = program.tree
    plain, compared = sites(tree, _is_plain_print), sites(tree, _is_filter_constant)
    for constant in donors.constants[:_FILTER_CONSTANTS]:
        for site in compared:
            yield Edit(site, ast.Constant(value=constant), f"filter by {constant!r}")
        for part in ("text", "title"):
            for site in plain:
                test = f"{constant!r} in {show(printed(site)[0])}.{part}"
                guarded = ast.If(test=expression(test), body=[site.node], orelse=[])
                yield Edit(site, guarded, f"print only if {test}")


def _is_plain_print(site: Site) -> bool:
    """A statement `print(p)` inside a loop."""
    args = printed(site)
    return len(args) == 1 and isinstance(args[0], ast.Name) and any(isinstance(a, ast.For) for a in site.ancestors)


def _is_filter_constant(site: Site) -> bool:
    return (
        isinstance(site.node, ast.Constant)
        and isinstance(site.node.value, str)
        and isinstance(site.parent, ast.Compare)
    )


@operator(turn=140, first="not_printed", second="crashed")
def change_filter(program: Program, donors: Donors) -> Iterator[Edit]:
    """Drops a filter, or inverts it."""
    tree = program.tree
    for site in sites(tree, _is_if):
        yield Edit(site, site.node.body, f"drop the condition {show(site.node.test)}")
    for site in sites(tree, _has_conditions):
        plain = copy.copy(site.node)
        plain.ifs = []
        yield Edit(site, plain, "drop the condition of the comprehension")
    for site in sites(tree, _is_condition):
        yield Edit(site, _inverted(site.node), f"invert {show(site.node)}")


def _is_if(site: Site) -> bool:
    return site.is_statement and isinstance(site.node, ast.If)


def _has_conditions(site: Site) -> bool:
    return isinstance(site.node, ast.comprehension) and bool(site.node.ifs)


def _is_condition(site: Site) -> bool:
    return site.field == "test" and isinstance(site.parent, ast.If)


def _inverted(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        opposite = _OPPOSITES.get(type(node.ops[0]))
        if opposite is not None:
            return ast.Compare(left=node.left, ops=[opposite()], comparators=node.comparators)
    return ast.UnaryOp(op=ast.Not(), operand=node)


@operator(turn=60, first="nothing_fetched part_fetched")
def sift(program: Program, donors: Donors) -> Iterator[Edit]:
    """Searches wide and prints only the passages that name a constant."""
    loops = sites(program.tree, is_searching_loop)
    for pool in _SIFT_POOLS:
        for constant in donors.constants[:_SIFT_CONSTANTS]:
            for site in loops:
                test = f"{constant!r} in {site.node.target.id}.text"
                sifted = with_body(site.node, [ast.If(test=expression(test), body=site.node.body, orelse=[])])
                sifted.iter = with_argument(sifted.iter, "k", ast.Constant(value=pool))
                yield Edit(site, sifted, f"k -> {pool}, only if {test}")
