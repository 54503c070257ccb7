"""Operators on ranked lists: reranking, and the fusion of several lists."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rpl.mutation.donors import Donors
from rpl.mutation.edits import Edit, operator
from rpl.mutation.sites import Site, sites
from rpl.mutation.syntax import argument, called, calling, constant_k, expression, is_search, show, with_argument
from rpl.programs.grammar import Program

_RERANK_POOL = 20
_FUSED_QUERIES = 6


@operator(turn=120, second="over_budget")
def insert_rerank(program: Program, donors: Donors) -> Iterator[Edit]:
    """Searches wider and lets the reranker choose what the search would have returned."""
    for site in sites(program.tree, is_search):
        if not any(called(ancestor) == "rerank" for ancestor in site.ancestors):
            yield Edit(site, _reranked(site.node), f"rerank {show(site.node)}")


def _reranked(call: ast.Call) -> ast.Call:
    query, k = argument(call, "query"), argument(call, "k")
    assert query is not None
    pool = max(_RERANK_POOL, 2 * (constant_k(call) or 0))
    wider = with_argument(call, "k", ast.Constant(value=min(pool, 100)))
    return calling("rerank", query, wider, k=k if k is not None else ast.Constant(value=10))


def _is_rerank(site: Site) -> bool:
    return called(site.node) == "rerank" and argument(site.node, "passages") is not None


@operator(turn=180, first="lost_in_rerank")
def remove_rerank(program: Program, donors: Donors) -> Iterator[Edit]:
    """Replaces a reranked list by the list itself."""
    for site in sites(program.tree, _is_rerank):
        passages = argument(site.node, "passages")
        assert passages is not None
        yield Edit(site, passages, "drop rerank")


@operator(turn=130, second="part_fetched", name="fuse")
def fuse_query(program: Program, donors: Donors) -> Iterator[Edit]:
    """Fuses a search with the same search for another query."""
    places = sites(program.tree, is_search)
    for text in ("question", *(repr(query) for query in donors.queries[:_FUSED_QUERIES])):
        for site in places:
            if text != show(argument(site.node, "query")):
                twin = with_argument(site.node, "query", expression(text))
                fused = calling("fuse", site.node, twin, k=argument(site.node, "k"))
                yield Edit(site, fused, f"fuse with the query {text}")


def _is_fuse(site: Site) -> bool:
    return called(site.node) == "fuse" and len(site.node.args) > 0


@operator(turn=170, first="lost_in_rerank")
def unfuse(program: Program, donors: Donors) -> Iterator[Edit]:
    """Replaces a fusion by one of its lists."""
    for site in sites(program.tree, _is_fuse):
        for part in site.node.args:
            if not isinstance(part, ast.Starred):
                yield Edit(site, part, f"fuse -> {show(part)}")
