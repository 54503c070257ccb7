"""Prefixes and pooling of well-known encoders, from their model cards."""

from __future__ import annotations

import logging
import re

log = logging.getLogger(__name__)

MODULES_FILE = "modules.json"
"""Stands in folders of sentence-transformers and says how the model pools."""

_SEARCH = "Represent this sentence for searching relevant passages: "
_TASK = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
PREFIXES: tuple[tuple[str, str, str], ...] = (
    (r"(^|[/_-])(multilingual-)?e5-(small|base|large)(?!.*instruct)", "query: ", "passage: "),
    (r"(^|[/_-])bge-(small|base|large)-en", _SEARCH, ""),
    (r"(^|[/_-])mxbai-embed-", _SEARCH, ""),
    (r"(^|[/_-])snowflake-arctic-embed-(xs|s|m|l)(-v1\.5)?$", _SEARCH, ""),
    (r"(^|[/_-])nomic-embed-text", "search_query: ", "search_document: "),
    (r"(^|[/_-])qwen3-embedding", _TASK, ""),
    (r"(^|[/_-])(e5-mistral|multilingual-e5-large-instruct)", f"{_TASK} ", ""),
)
"""Known encoders that want prefixes: pattern of the name, query prefix, passage prefix; from their model cards."""


POOLING: tuple[tuple[str, str], ...] = (
    (r"(^|[/_-])qwen3-embedding", "last"),
    (r"(^|[/_-])e5-mistral", "last"),
    (r"(^|[/_-])(multilingual-)?e5-(small|base|large)", "mean"),
    (r"(^|[/_-])(bge|gte-modernbert|mxbai-embed|snowflake-arctic-embed)-", "cls"),
    (r"(^|[/_-])(all-minilm|all-mpnet|nomic-embed|gte-(small|base|large))", "mean"),
)
"""Known encoders, with how their token vectors become one: needed only for folders that transformers alone wrote, as
those of sentence-transformers say it themselves. From their model cards."""


def default_prefixes(name: str, prompts: dict[str, str]) -> tuple[str, str]:
    """Returns the query and passage prefix of a model.

    Args:
        name: Folder or hub name; a local folder counts by its last part.
        prompts: What the model's own settings say; wins where it says anything.

    >>> default_prefixes("intfloat/e5-base-v2", {})
    ('query: ', 'passage: ')
    """
    query = prompts.get("query") or ""
    passage = prompts.get("passage") or prompts.get("document") or ""
    if query or passage:
        return query, passage
    for pattern, query, passage in PREFIXES:
        if re.search(pattern, _model(name)):
            return query, passage
    return "", ""


def default_pooling(name: str) -> str:
    """Returns the pooling of a model whose folder does not say it; the mean where the name is not known.

    >>> default_pooling("BAAI/bge-base-en-v1.5"), default_pooling("Qwen/Qwen3-Embedding-0.6B")
    ('cls', 'last')
    """
    for pattern, pooling in POOLING:
        if re.search(pattern, _model(name)):
            return pooling
    log.warning("encoder %s: its folder has no %s and its pooling is not known; taking the mean", name, MODULES_FILE)
    return "mean"


def _model(name: str) -> str:
    """Returns what patterns are matched with: a hub name, or the last part of a path, in lower case."""
    name = name.rstrip("/").lower()
    return name.rpartition("/")[2] if name.startswith((".", "/", "~")) or name.count("/") > 1 else name
