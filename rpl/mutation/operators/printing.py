"""Operators on what reaches the context: what is printed, and how much of a list or of a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rpl.mutation.donors import Donors
from rpl.mutation.edits import Edit, operator
from rpl.mutation.sites import Site, sites
from rpl.mutation.syntax import (
    COUNTED,
    K_VALUES,
    called,
    calling,
    constant_k,
    fresh_names,
    is_passage_loop,
    loops_over_passages,
    prints,
    show,
    statements,
    with_body,
)
from rpl.programs.grammar import Program
from rpl.programs.primitives import PASSAGE_LISTS, SEARCHES

_SLICES = (1, 2, 3, 5)


@operator(turn=80, first="not_printed", second="lost_in_rerank")
def print_passage(program: Program, donors: Donors) -> Iterator[Edit]:
    """Prints passages that are fetched and not printed, or of which only a part is printed."""
    tree = program.tree
    for site in sites(tree, is_passage_loop):
        variable = site.node.target.id
        if not any(prints(statement, variable) for statement in site.node.body):
            edited = with_body(site.node, [*statements(f"print({variable})"), *site.node.body])
            yield Edit(site, edited, f"print each {variable}")
    for site in sites(tree, _prints_part):
        part = next(argument for argument in site.node.args if _is_part(argument))
        yield Edit(site, calling("print", part.value), "print the whole passage")
    new = next(fresh_names(tree))
    for site in sites(tree, _assigns_list):
        variable = site.node.targets[0].id
        loop = statements(f"for {new} in {variable}:\n    print({new})")
        yield Edit(site, [site.node, *loop], f"print {variable}")


def _prints_part(site: Site) -> bool:
    return called(site.node) == "print" and any(_is_part(argument) for argument in site.node.args)


def _is_part(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in ("id", "title", "text", "score")
    )


def _assigns_list(site: Site) -> bool:
    node = site.node
    return (
        site.is_statement
        and isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and called(node.value) in PASSAGE_LISTS
    )


@operator(turn=150, first="not_printed over_budget", second="lost_in_rerank")
def print_budget(program: Program, donors: Donors) -> Iterator[Edit]:
    """Loops over fewer or more passages of a list, or over each passage once."""
    tree = program.tree
    for site in sites(tree, _is_slice):
        yield Edit(site, site.node.value, "drop the slice")
    for site in sites(tree, _is_slice_end):
        for n in K_VALUES:
            yield Edit(site, ast.Constant(value=n), f"slice end -> {n}")
    sources = sites(tree, _is_loop_source)
    for site in sources:
        if called(site.node) not in ("unique", *SEARCHES):  # one search finds a passage once
            yield Edit(site, calling("unique", site.node), "each passage once")
    for n in _SLICES:
        for site in sources:
            at_most = constant_k(site.node) if called(site.node) in COUNTED else None
            if not isinstance(site.node, ast.Subscript) and n < (at_most or n + 1):
                first = ast.Subscript(site.node, ast.Slice(upper=ast.Constant(value=n)), ast.Load())
                yield Edit(site, first, f"only the first {n}")


def _is_slice(site: Site) -> bool:
    return isinstance(site.node, ast.Subscript) and isinstance(site.node.slice, ast.Slice)


def _is_slice_end(site: Site) -> bool:
    return isinstance(site.node, ast.Constant) and site.field == "upper" and type(site.node.value) is int


def _is_loop_source(site: Site) -> bool:
    return site.field == "iter" and loops_over_passages(site.parent)


@operator(turn=190)
def loop_bound(program: Program, donors: Donors) -> Iterator[Edit]:
    """Runs a counted loop longer or shorter, or takes out a `break`."""
    tree = program.tree
    for site in sites(tree, _is_break):
        yield Edit(site, [], "drop break")
    bounds = sites(tree, _is_range_bound)
    for n in K_VALUES:
        for site in bounds:
            yield Edit(site, ast.Constant(value=n), f"range {show(site.node)} -> {n}")


def _is_break(site: Site) -> bool:
    return site.is_statement and isinstance(site.node, ast.Break) and len(site.block) > 1


def _is_range_bound(site: Site) -> bool:
    return called(site.parent) == "range" and isinstance(site.node, ast.Constant) and type(site.node.value) is int
