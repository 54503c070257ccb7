"""Reranking of a given list: late interaction between token vectors, or a cross-encoder."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from rpl.core.encoding import added_token_breaker
from rpl.core.errors import RetrieverError
from rpl.core.hub import resolve_model_folder
from rpl.core.records import Passage
from rpl.retrieval.base import Reranker
from rpl.retrieval.corpus.corpus import contents
from rpl.retrieval.dense.encoders import Encoder, default_batch_size, load_sentence_model, mixed_precision
from rpl.retrieval.dense.search import SCORE_DECIMALS
from rpl.retrieval.engines import RerankEngine

if TYPE_CHECKING:
    from rpl.retrieval.library_config import LibraryConfig


class LateInteractionReranker(Reranker):
    """Scores a passage by the mean, over the query's tokens, of the best cosine with any token of the passage.

    This is MaxSim of ColBERT (Khattab and Zaharia, SIGIR 2020, eq. 3), divided by the number of query tokens so that
    scores lie in [-1, 1]; the token vectors come from the library's own encoder, which was not trained for it.

    Args:
        encoder: Gives token vectors.
        cache_mb: Memory for the token vectors of passages already seen, in MiB.
    """

    def __init__(self, encoder: Encoder, cache_mb: int = 256) -> None:
        self.encoder = encoder
        self._tokens: LRUCache[str, NDArray[np.float16]] = LRUCache(
            cache_mb << 20, getsizeof=lambda array: array.nbytes
        )

    def rerank(self, query: str, passages: Sequence[Passage]) -> list[Passage]:
        """Returns the passages by falling score; see `Reranker.rerank`."""
        if not passages:
            return []
        try:
            with self.encoder.lock:
                tokens = self.encoder.encode_tokens([query], "query")[0]
                scores = max_sim(tokens, self._passage_tokens(passages))
        except RetrieverError:
            raise
        except Exception as error:
            raise RetrieverError(f"late interaction failed: {type(error).__name__}: {error}") from error
        return order_by(passages, scores)

    def close(self) -> None:
        """Frees the token vectors."""
        self._tokens.clear()

    def _passage_tokens(self, passages: Sequence[Passage]) -> list[NDArray[np.float16]]:
        known = {p.id: cached for p in passages if (cached := self._tokens.get(p.id)) is not None}
        missing = [p for p in passages if p.id not in known]
        if missing:
            fresh = self.encoder.encode_tokens([contents(p.title, p.text) for p in missing], "passage")
            for passage, vectors in zip(missing, fresh, strict=True):
                half = vectors.astype(np.float16)
                known[passage.id] = half
                if half.nbytes <= self._tokens.maxsize:
                    self._tokens[passage.id] = half
        return [known[p.id] for p in passages]


class CrossEncoderReranker(Reranker):
    """Scores each pair of query and passage with a sequence classifier of sentence-transformers.

    Args:
        folder: The model's folder.
        name: As written in the settings.
        device: `auto` or a torch device.
        batch_size: Pairs scored at once; `None` means 16 on a CPU and 128 on a GPU.
        precision: `float32` or `bfloat16` arithmetic.

    Raises:
        ConfigError: The folder cannot be loaded as a cross-encoder.
        MissingDependencyError: sentence-transformers is not installed.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        device: str = "auto",
        batch_size: int | None = None,
        precision: str = "float32",
    ) -> None:
        self.name = name
        self.precision = precision
        self._model = load_sentence_model("CrossEncoder", folder, "library.reranker", device)
        self.batch_size = batch_size or default_batch_size(self._model)
        self._break_up = added_token_breaker(self._model.tokenizer)
        self._lock = threading.Lock()

    def rerank(self, query: str, passages: Sequence[Passage]) -> list[Passage]:
        """Returns the passages by falling score; see `Reranker.rerank`."""
        if not passages:
            return []
        query = self._break_up(query)
        pairs = [(query, self._break_up(contents(p.title, p.text))) for p in passages]
        try:
            with self._lock, mixed_precision(self._model, self.precision):
                scores = self._model.predict(pairs, batch_size=self.batch_size, show_progress_bar=False)
        except Exception as error:
            raise RetrieverError(f"cross-encoder {self.name!r} failed: {type(error).__name__}: {error}") from error
        return order_by(passages, np.asarray(scores, dtype=np.float64))


@dataclass(frozen=True)
class LateInteraction(RerankEngine):
    """Late interaction with the library's own encoder."""

    needs_encoder: ClassVar[bool] = True

    cache_mb: int = 256
    """Memory for token embeddings of passages already seen, in MiB."""

    def open(self, config: LibraryConfig, encoder: Encoder | None) -> LateInteractionReranker:
        """Returns the reranker; see `RerankEngine.open`."""
        assert encoder is not None
        return LateInteractionReranker(encoder, self.cache_mb)


@dataclass(frozen=True)
class CrossEncoder(RerankEngine):
    """A cross-encoder of sentence-transformers."""

    model: str
    """Local folder or hub name."""

    def open(self, config: LibraryConfig, encoder: Encoder | None) -> CrossEncoderReranker:
        """Loads the model; see `RerankEngine.open`."""
        folder = resolve_model_folder(self.model, "library.reranker")
        batch_size, precision = config.encoder_batch_size, config.encoder_precision
        return CrossEncoderReranker(folder, self.model, config.device, batch_size, precision)


def max_sim(query: NDArray[np.float32], passages: Sequence[NDArray[np.floating]]) -> NDArray[np.float64]:
    """Returns the mean over query tokens of the largest inner product with a token of each passage.

    Args:
        query: Token vectors of shape (query tokens, dim).
        passages: At least one; token vectors of shape (passage tokens, dim), with at least one token each.

    Returns:
        One score a passage.

    >>> one, two = np.eye(2, dtype=np.float32)
    >>> max_sim(np.stack([one, two]), [one[None], np.stack([one, two])]).tolist()
    [0.5, 1.0]
    """
    starts = np.cumsum([0] + [len(tokens) for tokens in passages[:-1]])
    products = query @ np.concatenate(passages).astype(np.float32).T
    return np.maximum.reduceat(products, starts, axis=1).mean(axis=0).astype(np.float64)


def order_by(passages: Sequence[Passage], scores: NDArray[np.float64]) -> list[Passage]:
    """Returns passages by falling score (rounded), equal scores in the given order, with new `score` and `rank`.

    Raises:
        RetrieverError: There is not one finite score a passage.
    """
    if scores.shape != (len(passages),) or not np.isfinite(scores).all():
        raise RetrieverError(f"the reranker must give one finite score to each of {len(passages)} passages")
    rounded = np.round(scores, SCORE_DECIMALS)
    order = np.argsort(-rounded, kind="stable").tolist()
    return [replace(passages[i], score=float(rounded[i]), rank=rank) for rank, i in enumerate(order)]
