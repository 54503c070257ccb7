"""Operators on loops and prints: steps along links, second searches, filters, budgets."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from rpl.mutation.donors import Donors
from rpl.mutation.operators.queries import K_VALUES
from rpl.mutation.sites import (
    PASSAGE_LISTS,
    SEARCHES,
    Edit,
    Site,
    argument,
    called,
    constant_k,
    expression,
    fresh_name,
    is_search,
    is_statement,
    passage_loop,
    prints,
    put,
    rewrite,
    show,
    sites,
    statements,
    with_argument,
)
from rpl.programs.grammar import Program

_UNION_QUERIES = 16
_FOLLOW_UP_WORDS = 4
_FILTER_CONSTANTS = 8
_SLICES = (1, 2, 3, 5)


def bridge(program: Program, donors: Donors) -> Iterator[Edit]:
    """Follows each passage of a loop to the next: along its links, or by a search that starts from its title."""
    new = fresh_name(program.tree)
    steps = ["links({p})", "links({p}, k=1)", "links({p}, k=3)"]
    steps += [f"bm25({{p}}.title + {' ' + word!r}, k=1)" for word in donors.words[:_FOLLOW_UP_WORDS]]
    steps += ["bm25({p}.title, k=3)"]
    loops = sites(program.tree, passage_loop)
    for step in steps:
        for i, site in enumerate(loops):
            name = site.node.target.id
            source = step.format(p=name)
            inner = f"for {new} in {source}:\n    print({new})"
            tree = rewrite(program, passage_loop, i, _with_tail, inner)
            yield Edit(tree, f"line {site.line}: follow {source}")
        for i, site in enumerate(sites(program.tree, _is_direct_print)):
            found = show(site.node.value.args[0])
            if _is_list(site.node.value.args[0]):
                found = f"{found}[0]"
            source = step.format(p=found)
            after = f"for {new} in {source}:\n    print({new})"
            tree = rewrite(program, _is_direct_print, i, _and_then, statements(after))
            yield Edit(tree, f"line {site.line}: follow {source}")


def _and_then(statement: ast.AST, following: list[ast.stmt]) -> list[ast.AST]:
    return [statement, *following]


def _with_tail(loop: ast.AST, text: str) -> ast.AST:
    assert isinstance(loop, ast.For)
    loop.body += statements(text)
    return loop


def _is_list(node: ast.AST) -> bool:
    return called(node) in PASSAGE_LISTS


def _printed(site: Site) -> list[ast.expr]:
    """The arguments of a statement that prints; none for any other node."""
    node = site.node
    if not (is_statement(site) and isinstance(node, ast.Expr) and called(node.value) == "print"):
        return []
    assert isinstance(node.value, ast.Call)
    return node.value.args


def _is_direct_print(site: Site) -> bool:
    """`print(bm25(...))`, `print(bm25(...)[0])` or `print(read(...))` as a statement."""
    args = _printed(site)
    if len(args) != 1:
        return False
    value = args[0].value if isinstance(args[0], ast.Subscript) else args[0]
    return _is_list(value) or called(value) == "read"


def _is_retrieval_block(site: Site) -> bool:
    node = site.node
    return (
        is_statement(site)
        and isinstance(site.ancestors[-1], ast.Module)
        and any(is_search(inner) for inner in sites(node, is_search))
        and any(called(inner) == "print" for inner in ast.walk(node))
    )


def union(program: Program, donors: Donors) -> Iterator[Edit]:
    """Repeats a statement that searches and prints, with another query."""
    for query in donors.queries[:_UNION_QUERIES]:
        for i, site in enumerate(sites(program.tree, _is_retrieval_block)):
            first = sites(site.node, is_search)[0]
            if show(argument(first.node, "query")) == repr(query):
                continue
            twin = _twin(site.node, query)
            tree = rewrite(program, _is_retrieval_block, i, _and_then, [twin])
            yield Edit(tree, f"line {first.line}: also search for {query!r}")


def _twin(statement: ast.AST, query: str) -> ast.AST:
    twin = copy.deepcopy(statement)
    with_argument(sites(twin, is_search)[0].node, "query", ast.Constant(value=query))
    return twin


def print_passage(program: Program, donors: Donors) -> Iterator[Edit]:
    """Prints passages that are fetched and not printed, or of which only a part is printed."""
    tree = program.tree
    for i, site in enumerate(sites(tree, passage_loop)):
        name = site.node.target.id
        if not any(prints(Site(s, "body", 0, ()), name) for s in site.node.body):
            edited = rewrite(program, passage_loop, i, _with_head, f"print({name})")
            yield Edit(edited, f"line {site.line}: print each {name}")
    for i, site in enumerate(sites(tree, _prints_part)):
        edited = rewrite(program, _prints_part, i, _print_whole)
        yield Edit(edited, f"line {site.line}: print the whole passage")
    new = fresh_name(tree)
    for i, site in enumerate(sites(tree, _assigns_list)):
        name = site.node.targets[0].id
        loop = f"for {new} in {name}:\n    print({new})"
        edited = rewrite(program, _assigns_list, i, _and_then, statements(loop))
        yield Edit(edited, f"line {site.line}: print {name}")


def _with_head(loop: ast.AST, text: str) -> ast.AST:
    assert isinstance(loop, ast.For)
    loop.body[:0] = statements(text)
    return loop


def _prints_part(site: Site) -> bool:
    node = site.node
    return called(node) == "print" and any(
        isinstance(a, ast.Attribute) and isinstance(a.value, ast.Name) and a.attr in ("id", "title", "text", "score")
        for a in node.args
    )


def _print_whole(call: ast.AST) -> ast.AST:
    assert isinstance(call, ast.Call)
    part = next(a for a in call.args if isinstance(a, ast.Attribute) and isinstance(a.value, ast.Name))
    return ast.Call(func=call.func, args=[part.value], keywords=[])


def _assigns_list(site: Site) -> bool:
    node = site.node
    return (
        is_statement(site)
        and isinstance(node, ast.Assign)
        and len(node.targets) == 1
        and isinstance(node.targets[0], ast.Name)
        and _is_list(node.value)
    )


def _is_plain_print(site: Site) -> bool:
    """A statement `print(p)` inside a loop."""
    args = _printed(site)
    return len(args) == 1 and isinstance(args[0], ast.Name) and any(isinstance(a, ast.For) for a in site.ancestors)


def _is_if(site: Site) -> bool:
    return is_statement(site) and isinstance(site.node, ast.If)


def _is_condition(site: Site) -> bool:
    return site.field == "test" and isinstance(site.ancestors[-1], ast.If)


def _is_filter_constant(site: Site) -> bool:
    return (
        isinstance(site.node, ast.Constant)
        and isinstance(site.node.value, str)
        and isinstance(site.ancestors[-1], ast.Compare)
    )


def add_filter(program: Program, donors: Donors) -> Iterator[Edit]:
    """Prints a passage only if its text or title names a constant; or exchanges the constant of a filter."""
    places = sites(program.tree, _is_plain_print)
    compared = sites(program.tree, _is_filter_constant)
    for constant in donors.constants[:_FILTER_CONSTANTS]:
        for i, site in enumerate(compared):
            tree = rewrite(program, _is_filter_constant, i, put, ast.Constant(value=constant))
            yield Edit(tree, f"line {site.line}: filter by {constant!r}")
        for part in ("text", "title"):
            for i, site in enumerate(places):
                test = f"{constant!r} in {site.node.value.args[0].id}.{part}"
                tree = rewrite(program, _is_plain_print, i, _guarded, test)
                yield Edit(tree, f"line {site.line}: print only if {test}")


def _guarded(node: ast.AST, test: str) -> ast.If:
    assert isinstance(node, ast.stmt)
    return ast.If(test=expression(test), body=[node], orelse=[])


def change_filter(program: Program, donors: Donors) -> Iterator[Edit]:
    """Drops a filter, or inverts it."""
    for i, site in enumerate(sites(program.tree, _is_if)):
        tree = rewrite(program, _is_if, i, _body)
        yield Edit(tree, f"line {site.line}: drop the condition {show(site.node.test)}")
    for i, site in enumerate(sites(program.tree, _has_ifs)):
        tree = rewrite(program, _has_ifs, i, _without_ifs)
        yield Edit(tree, f"line {site.line}: drop the condition of the comprehension")
    for i, site in enumerate(sites(program.tree, _is_condition)):
        yield Edit(rewrite(program, _is_condition, i, _inverted), f"line {site.line}: invert {show(site.node)}")


def _body(node: ast.If) -> list[ast.stmt]:
    return list(node.body)


def _has_ifs(site: Site) -> bool:
    return isinstance(site.node, ast.comprehension) and bool(site.node.ifs)


def _without_ifs(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.comprehension)
    node.ifs = []
    return node


def _inverted(node: ast.AST) -> ast.expr:
    assert isinstance(node, ast.expr)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        op = node.ops[0]
        opposite = {ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}.get(type(op))
        if opposite is not None:
            return ast.Compare(left=node.left, ops=[opposite()], comparators=node.comparators)
    return ast.UnaryOp(op=ast.Not(), operand=node)


def _is_loop_source(site: Site) -> bool:
    return site.field == "iter" and isinstance(site.ancestors[-1], ast.For) and _over_passages(site)


def _over_passages(site: Site) -> bool:
    return passage_loop(Site(site.ancestors[-1], "body", 0, site.ancestors[:-1]))


def _is_slice_end(site: Site) -> bool:
    return isinstance(site.node, ast.Constant) and site.field == "upper" and type(site.node.value) is int


def _is_slice(site: Site) -> bool:
    return isinstance(site.node, ast.Subscript) and isinstance(site.node.slice, ast.Slice)


def print_budget(program: Program, donors: Donors) -> Iterator[Edit]:
    """Loops over fewer or more passages of a list, or over each passage once."""
    for i, site in enumerate(sites(program.tree, _is_slice)):
        yield Edit(rewrite(program, _is_slice, i, _sliced_value), f"line {site.line}: drop the slice")
    for i, site in enumerate(sites(program.tree, _is_slice_end)):
        for n in K_VALUES:
            tree = rewrite(program, _is_slice_end, i, put, ast.Constant(value=n))
            yield Edit(tree, f"line {site.line}: slice end -> {n}")
    for i, site in enumerate(sites(program.tree, _is_loop_source)):
        if called(site.node) not in ("unique", *SEARCHES):  # one search finds a passage once
            tree = rewrite(program, _is_loop_source, i, _deduplicated)
            yield Edit(tree, f"line {site.line}: each passage once")
    for n in _SLICES:
        for i, site in enumerate(sites(program.tree, _is_loop_source)):
            at_most = constant_k(site.node) if called(site.node) in (*SEARCHES, "links") else None
            if not isinstance(site.node, ast.Subscript) and n < (at_most or n + 1):
                tree = rewrite(program, _is_loop_source, i, _sliced, n)
                yield Edit(tree, f"line {site.line}: only the first {n}")


def _sliced_value(node: ast.Subscript) -> ast.expr:
    return node.value


def _deduplicated(node: ast.AST) -> ast.Call:
    assert isinstance(node, ast.expr)
    return ast.Call(func=ast.Name(id="unique", ctx=ast.Load()), args=[node], keywords=[])


def _sliced(node: ast.AST, n: int) -> ast.Subscript:
    assert isinstance(node, ast.expr)
    return ast.Subscript(value=node, slice=ast.Slice(upper=ast.Constant(value=n)), ctx=ast.Load())


def _is_range_bound(site: Site) -> bool:
    return (
        called(site.ancestors[-1]) == "range" and isinstance(site.node, ast.Constant) and type(site.node.value) is int
    )


def _is_break(site: Site) -> bool:
    return is_statement(site) and isinstance(site.node, ast.Break) and len(site.block) > 1


def loop_bound(program: Program, donors: Donors) -> Iterator[Edit]:
    """Runs a counted loop longer or shorter, or takes out a `break`."""
    for i, site in enumerate(sites(program.tree, _is_break)):
        yield Edit(rewrite(program, _is_break, i, put, []), f"line {site.line}: drop break")
    for n in K_VALUES:
        for i, site in enumerate(sites(program.tree, _is_range_bound)):
            tree = rewrite(program, _is_range_bound, i, put, ast.Constant(value=n))
            yield Edit(tree, f"line {site.line}: range {show(site.node)} -> {n}")
