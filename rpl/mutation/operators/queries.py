"""Operators on search calls: what is asked, of which primitive, how many passages, and how lists are joined."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rpl.mutation.donors import Donors
from rpl.mutation.sites import (
    PASSAGE_LISTS,
    SEARCHES,
    Edit,
    Site,
    argument,
    called,
    constant_k,
    expression,
    is_search,
    put,
    rewrite,
    show,
    sites,
    with_argument,
)
from rpl.programs.grammar import Program

K_VALUES = (1, 2, 3, 5, 8, 10, 20)
"""The numbers of passages that mutations choose from."""
_RERANK_POOL = 20
_FUSED_QUERIES = 6


def _is_query(site: Site) -> bool:
    """The query of a call, or a string that is assigned or listed and may become one."""
    parent = site.ancestors[-1]
    if not isinstance(site.node, ast.expr):
        return False
    call = site.ancestors[-2] if isinstance(parent, ast.keyword) else parent
    if called(call) in (*SEARCHES, "rerank") and argument(call, "query") is site.node:
        return True
    if not (isinstance(site.node, ast.Constant) and isinstance(site.node.value, str)):
        return False
    if isinstance(parent, ast.Assign):
        return True
    return isinstance(parent, ast.List | ast.Tuple) and not any(
        isinstance(a, ast.Subscript | ast.Compare) for a in site.ancestors
    )


def query_edit(program: Program, donors: Donors) -> Iterator[Edit]:
    """Replaces a query by a donor text or by the question."""
    places = sites(program.tree, _is_query)
    for text in (*(repr(query) for query in donors.queries), "question"):
        for i, site in enumerate(places):
            tree = rewrite(program, _is_query, i, put, expression(text))
            yield Edit(tree, f"line {site.line}: query {show(site.node)} -> {text}")


def primitive_swap(program: Program, donors: Donors) -> Iterator[Edit]:
    """Replaces `bm25` by `dense` or the reverse, or either by the fusion of both."""
    places = sites(program.tree, is_search)
    for i, site in enumerate(places):
        other = _other(site.node)
        tree = rewrite(program, is_search, i, _renamed, other)
        yield Edit(tree, f"line {site.line}: {called(site.node)} -> {other}")
    for i, site in enumerate(places):
        yield Edit(rewrite(program, is_search, i, _fused_with_other), f"line {site.line}: fuse bm25 and dense")


def _other(call: ast.AST) -> str:
    return "dense" if called(call) == "bm25" else "bm25"


def _renamed(call: ast.AST, name: str) -> ast.Call:
    assert isinstance(call, ast.Call)
    return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=call.args, keywords=call.keywords)


def _fused(first: ast.expr, second: ast.expr, k: ast.expr | None) -> ast.Call:
    keywords = [] if k is None else [ast.keyword(arg="k", value=k)]
    return ast.Call(func=ast.Name(id="fuse", ctx=ast.Load()), args=[first, second], keywords=keywords)


def _fused_with_other(call: ast.AST) -> ast.Call:
    assert isinstance(call, ast.Call)
    return _fused(call, _renamed(call, _other(call)), argument(call, "k"))


def _has_k(site: Site) -> bool:
    return called(site.node) in (*SEARCHES, "rerank", "links") and bool(site.node.args)


def change_k(program: Program, donors: Donors) -> Iterator[Edit]:
    """Asks a call for more passages, or for fewer."""
    places = sites(program.tree, _has_k)
    choices = [(i, site, k) for i, site in enumerate(places) for k in K_VALUES if k != constant_k(site.node)]
    for i, site, k in sorted(choices, key=lambda choice: _distance_in_k(constant_k(choice[1].node), choice[2])):
        tree = rewrite(program, _has_k, i, with_argument, "k", ast.Constant(value=k))
        yield Edit(tree, f"line {site.line}: {called(site.node)} k {constant_k(site.node)} -> {k}")


def _distance_in_k(old: int | None, new: int) -> tuple[bool, int]:
    """Larger values first, nearest first."""
    old = old or 0
    return (new < old, abs(new - old))


def insert_rerank(program: Program, donors: Donors) -> Iterator[Edit]:
    """Searches wider and lets the reranker choose what the search would have returned."""
    for i, site in enumerate(sites(program.tree, is_search)):
        if not any(called(ancestor) == "rerank" for ancestor in site.ancestors):
            yield Edit(rewrite(program, is_search, i, _reranked), f"line {site.line}: rerank {show(site.node)}")


def _reranked(call: ast.AST) -> ast.Call:
    query, k = argument(call, "query"), argument(call, "k")
    assert query is not None
    pool = max(_RERANK_POOL, 2 * (constant_k(call) or 0))
    wider = with_argument(call, "k", ast.Constant(value=min(pool, 100)))
    keywords = [ast.keyword(arg="k", value=k if k is not None else ast.Constant(value=10))]
    return ast.Call(func=ast.Name(id="rerank", ctx=ast.Load()), args=[query, wider], keywords=keywords)


def _is_rerank(site: Site) -> bool:
    return called(site.node) == "rerank" and argument(site.node, "passages") is not None


def remove_rerank(program: Program, donors: Donors) -> Iterator[Edit]:
    """Replaces a reranked list by the list itself."""
    for i, site in enumerate(sites(program.tree, _is_rerank)):
        tree = rewrite(program, _is_rerank, i, argument, "passages")
        yield Edit(tree, f"line {site.line}: drop rerank")


def fuse_query(program: Program, donors: Donors) -> Iterator[Edit]:
    """Fuses a search with the same search for another query."""
    places = sites(program.tree, is_search)
    for text in ("question", *(repr(query) for query in donors.queries[:_FUSED_QUERIES])):
        for i, site in enumerate(places):
            if text == show(argument(site.node, "query")):
                continue
            tree = rewrite(program, is_search, i, _fused_with_query, text)
            yield Edit(tree, f"line {site.line}: fuse with the query {text}")


def _fused_with_query(call: ast.AST, text: str) -> ast.Call:
    assert isinstance(call, ast.Call)
    k = argument(call, "k")
    twin = ast.Call(func=call.func, args=list(call.args), keywords=[ast.keyword(k.arg, k.value) for k in call.keywords])
    return _fused(call, with_argument(twin, "query", expression(text)), k)


def _is_fuse(site: Site) -> bool:
    return called(site.node) == "fuse" and len(site.node.args) > 0


def unfuse(program: Program, donors: Donors) -> Iterator[Edit]:
    """Replaces a fusion by one of its lists."""
    for i, site in enumerate(sites(program.tree, _is_fuse)):
        for j, part in enumerate(site.node.args):
            if not isinstance(part, ast.Starred):
                tree = rewrite(program, _is_fuse, i, _part, j)
                yield Edit(tree, f"line {site.line}: fuse -> {show(part)}")


def _part(call: ast.Call, number: int) -> ast.expr:
    return call.args[number]


def _list_call(site: Site) -> bool:
    return called(site.node) in PASSAGE_LISTS and not isinstance(site.ancestors[-1], ast.BoolOp)


def branch_guard(program: Program, donors: Donors) -> Iterator[Edit]:
    """Falls back to another search where one finds nothing: `bm25('a') or bm25(question)`."""
    places = sites(program.tree, _list_call)
    for text in ("question", *(repr(query) for query in donors.queries[:3])):
        for i, site in enumerate(places):
            searches = called(site.node) in SEARCHES
            if searches and text == show(argument(site.node, "query")):
                continue
            k = constant_k(site.node) if searches else None
            fallback = f"bm25({text}, k={k or 3})"
            tree = rewrite(program, _list_call, i, _or_else, fallback)
            yield Edit(tree, f"line {site.line}: if nothing is found, {fallback}")


def _or_else(node: ast.AST, fallback: str) -> ast.BoolOp:
    assert isinstance(node, ast.expr)
    return ast.BoolOp(op=ast.Or(), values=[node, expression(fallback)])
