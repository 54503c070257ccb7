"""The settings of a library, as they stand in YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rpl.core.errors import ConfigError
from rpl.core.machine import fastest_precision
from rpl.retrieval.engines import (
    DENSE_INDEXES,
    KEYWORD_ENGINES,
    Analysis,
    DenseIndex,
    KeywordEngine,
    RerankEngine,
    check_name,
)


@dataclass(frozen=True)
class RemoteConfig:
    """How a server is asked, where `library.corpus` is a URL."""

    protocol: Literal["rpl", "search-r1"] = "rpl"
    """`rpl`: a server of `rpl serve-retrieval`, with all its primitives. `search-r1`: a server with `/retrieve` alone,
    such as Search-R1's; it offers one search and nothing else."""
    primitive: Literal["bm25", "dense"] = "dense"
    """`search-r1`: the primitive that such a server answers; its protocol does not say what it runs."""
    timeout_s: float = 4.0
    """Seconds that one call may take, the waits that a busy server asks for included. Keep it below `limits.call_s`."""
    start_s: float = 60.0
    """Seconds to wait at the start for a server that is still loading."""
    connections: int = 64
    """Open connections at most; further calls wait for one."""
    fingerprint: str | None = None
    """The fingerprint that the server's library must have; `None` takes the one it has when a run begins. A server
    whose fingerprint changes during a run is refused in any case."""

    def __post_init__(self) -> None:
        for name, allowed in (("protocol", ("rpl", "search-r1")), ("primitive", ("bm25", "dense"))):
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"library.remote.{name} must be one of {', '.join(allowed)}, got {value!r}")
        if not self.timeout_s > 0:
            raise ConfigError(f"library.remote.timeout_s must be positive, got {self.timeout_s}")
        for name, least in (("start_s", 0), ("connections", 1)):
            if not getattr(self, name) >= least:
                raise ConfigError(f"library.remote.{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class LibraryConfig:
    """What a program can search, and how."""

    corpus: str = "atlas"
    """`atlas`, `atlas-mini`, a corpus file (`.jsonl` or `.jsonl.gz`), an index folder made by `rpl index`, or the
    URL of a retrieval server."""
    index_dir: str | None = None
    """Where the index of a corpus file is kept; `None` keeps it in the cache folder, keyed by content and settings."""
    bm25: KeywordEngine | str = "bm25s"
    """Engine of keyword search: `bm25s`, `lucene` (through pyserini), `memory` (an exact, slow reference), or a
    `class_path`."""
    bm25_k1: float = 0.9
    """Term-frequency saturation, at least 0 (0.9 as in Pyserini)."""
    bm25_b: float = 0.4
    """Length normalisation, in [0, 1] (0.4 as in Pyserini)."""
    stemmer: str = "english"
    """Snowball stemmer of keyword search, or `none`."""
    stop_words: bool = True
    """Whether keyword search ignores Lucene's 33 English stop words."""
    dense: bool = False
    """Whether `dense` is offered; needs the encoder, and embeddings are computed once when the index is built."""
    encoder: str = "all-MiniLM-L6-v2"
    """Sentence encoder: a local folder, a hub name, or `hash` (no meaning, for tests)."""
    query_prefix: str | None = None
    """Text put before queries; `None` takes what the model's own settings or the table of known encoders say."""
    passage_prefix: str | None = None
    """Text put before passages; `None` as for `query_prefix`."""
    embedding_dtype: Literal["float32", "float16"] = "float32"
    """Number format of stored and searched embeddings; float16 halves disk and memory."""
    encoder_batch_size: int | None = None
    """Texts encoded at once; `None` means 16 on a CPU and 128 on a GPU."""
    encoder_precision: Literal["float32", "bfloat16", "auto"] = "float32"
    """Arithmetic of encoder and cross-encoder; `auto` is what this machine multiplies fastest. bfloat16 is about 1.5
    times as fast on CPUs with AVX512-BF16 and moves similarities by about 1e-4."""
    device: str = "auto"
    """Where encoder and cross-encoder run: `auto`, `cpu`, `cuda`, `cuda:1`, …"""
    reranker: RerankEngine | str | None = None
    """`late-interaction` (token-level, with the encoder), a cross-encoder (local folder or hub name), `none`, or a
    `class_path` (`rpl.retrieval.rerank.yes_no.YesNo` for Qwen3-Reranker). `None` means late interaction where `dense`
    is on, and no reranker otherwise."""
    rerank_cache_mb: int = 256
    """Memory for token embeddings of passages that late interaction has seen, in MiB."""
    cache_size: int = 50_000
    """Results kept for repeated calls; 0 turns the cache off."""
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    """How the server is asked where `corpus` is a URL; no other setting but `cache_size` counts then."""
    dense_index: DenseIndex | str | None = None
    """Index of dense search: `flat` (exact; what `None` means), `sq8`, `fp16`, `hnsw`, `ivfpq`, `milvus`, or a
    `class_path`."""
    encoder_pooling: Literal["mean", "cls", "last"] | None = None
    """How token vectors become one; `None` takes what the model's own settings or the table of known encoders say."""
    encoder_max_tokens: int | None = None
    """Tokens of a text that the encoder reads; `None` takes the model's own limit."""

    def __post_init__(self) -> None:
        if not self.corpus:
            raise ConfigError("library.corpus is empty; give atlas, atlas-mini, a .jsonl file or an index folder")
        check_name("bm25", self.bm25, KeywordEngine, KEYWORD_ENGINES)
        if isinstance(self.reranker, str) and "class_path" in self.reranker:
            check_name("reranker", self.reranker, RerankEngine, {})
        if self.dense_index is not None:
            check_name("dense_index", self.dense_index, DenseIndex, DENSE_INDEXES)
        if self.encoder_pooling is not None:
            _one_of("encoder_pooling", self.encoder_pooling, ("mean", "cls", "last"))
        _one_of("embedding_dtype", self.embedding_dtype, ("float32", "float16"))
        if not self.bm25_k1 >= 0:
            raise ConfigError(f"library.bm25_k1 must be at least 0, got {self.bm25_k1}")
        if not 0 <= self.bm25_b <= 1:
            raise ConfigError(f"library.bm25_b must be in [0, 1], got {self.bm25_b}")
        if not self.encoder:
            raise ConfigError("library.encoder is empty; give a local folder, a hub name or `hash`")
        _one_of("encoder_precision", self.encoder_precision, ("float32", "bfloat16", "auto"))
        if self.encoder_precision == "auto" and (self.dense or self.reranker is not None):
            # the number format decides results, so that everything that identifies a library holds the format itself
            object.__setattr__(self, "encoder_precision", fastest_precision(self._device_type()).dtype)
        for name, least in (
            ("encoder_batch_size", 1),
            ("encoder_max_tokens", 1),
            ("rerank_cache_mb", 0),
            ("cache_size", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"library.{name} must be at least {least}, got {getattr(self, name)}")

    def _device_type(self) -> str:
        if self.device != "auto":
            return self.device.partition(":")[0]
        import torch

        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def analysis(self) -> Analysis:
        """Tokens and weights of keyword search."""
        return Analysis(self.bm25_k1, self.bm25_b, self.stemmer, self.stop_words)


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"library.{key} must be one of {', '.join(allowed)}, got {value!r}")
