"""The interfaces of retrieval: `Retriever`, `Reranker`, and the defaults a program's primitives share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rpl.core.records import Passage

MAX_K = 100
"""The largest `k` that any primitive accepts."""

MAX_QUERY_CHARS = 2_000
"""The longest query of a search: as far as encoders read, and at most 1,000 words, of which Lucene takes 1,024."""


class Retriever(ABC):
    """Finds passages for queries."""

    name: str
    """The primitive it serves: `bm25` or `dense`."""
    gather: bool = False
    """Whether a library gathers concurrent searches into one: where many queries at once cost less than one by one, and
    where only one thread may use the backend."""

    @abstractmethod
    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Returns the best passages of each query.

        Args:
            queries: Non-empty query texts.
            k: How many passages a query at most, in [1, MAX_K].

        Returns:
            One list a query, best first: `rank` counts from 0, scores do not increase, ties are in corpus order,
            no id repeats. Fewer than `k` (even none) where fewer match. A shorter list is the start of a longer one.

        Raises:
            RetrieverError: The backend failed. A backend never returns an empty list in place of a failure.
        """


class Reranker(ABC):
    """Orders given passages anew."""

    @abstractmethod
    def rerank(self, query: str, passages: Sequence[Passage]) -> list[Passage]:
        """Returns the same passages, best first, with new `score` and `rank`; ties keep the given order.

        Raises:
            RetrieverError: The backend failed.
        """
