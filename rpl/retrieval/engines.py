"""The engines of a library: what each kind must offer, and how YAML names one.

An engine is written in YAML by a short name (`bm25: lucene`) or by its class:

    dense_index:
      class_path: rpl.retrieval.dense.faiss_indexes.HNSW
      init_args: {neighbours: 32}

An engine object holds settings only; building and opening happen in its methods. Any importable class with the same
methods works: the built-in ones have no rights of their own.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rpl.core.class_paths import class_at
from rpl.core.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rpl.retrieval.base import Reranker, Retriever
    from rpl.retrieval.corpus.corpus import Corpus
    from rpl.retrieval.dense.encoders import Encoder
    from rpl.retrieval.library_config import LibraryConfig

KEYWORD_ENGINES = {
    "bm25s": "rpl.retrieval.keyword.bm25.BM25S",
    "memory": "rpl.retrieval.keyword.memory.Memory",
    "lucene": "rpl.retrieval.keyword.lucene.Lucene",
}
"""Short names that `library.bm25` accepts."""

DENSE_INDEXES = {
    "flat": "rpl.retrieval.dense.faiss_indexes.Flat",
    "fp16": "rpl.retrieval.dense.faiss_indexes.FP16",
    "sq8": "rpl.retrieval.dense.faiss_indexes.SQ8",
    "hnsw": "rpl.retrieval.dense.faiss_indexes.HNSW",
    "ivfpq": "rpl.retrieval.dense.faiss_indexes.IVFPQ",
    "milvus": "rpl.retrieval.dense.milvus_dense.MilvusDense",
}
"""Short names that `library.dense_index` accepts."""

_GONE = {"bm25": "milvus"}
"""Engines that are no more, by the key that named them."""

_MOVED = {
    "rpl.retrieval.bm25": "rpl.retrieval.keyword.bm25",
    "rpl.retrieval.memory": "rpl.retrieval.keyword.memory",
    "rpl.retrieval.lucene": "rpl.retrieval.keyword.lucene",
    "rpl.retrieval.faiss_indexes": "rpl.retrieval.dense.faiss_indexes",
    "rpl.retrieval.milvus_dense": "rpl.retrieval.dense.milvus_dense",
    "rpl.retrieval.rerank": "rpl.retrieval.rerank.rerankers",
    "rpl.retrieval.yes_no": "rpl.retrieval.rerank.yes_no",
}
"""Modules of engines that have moved: manifests and YAML files of earlier versions name them."""

_ALIASES = {**{path: name for name, path in KEYWORD_ENGINES.items()}, **{p: n for n, p in DENSE_INDEXES.items()}}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Analysis:
    """How keyword search reads texts and weighs words: the `bm25_*`, `stemmer` and `stop_words` of the library."""

    k1: float = 0.9
    b: float = 0.4
    stemmer: str = "english"
    stop_words: bool = True


class KeywordEngine(ABC):
    """Settings of a keyword engine."""

    subfolder: ClassVar[str | None]
    """Where its files lie in an index folder; `None` if it writes none."""
    package: ClassVar[str | None] = None
    """The package whose minor version decides whether its files can be read; `None` if there is none."""
    search_only: ClassVar[frozenset[str]] = frozenset()
    """Settings that do not change the index, so that one index may be opened with any value of them."""

    @abstractmethod
    def build(self, corpus: Corpus, folder: Path, analysis: Analysis) -> None:
        """Writes the index of a corpus.

        Args:
            corpus: The passages.
            folder: Where to write; its parent exists, itself it does not.
            analysis: Tokens and weights.

        Raises:
            ConfigError: The engine cannot do what `analysis` asks for.
            MissingDependencyError: A package is missing.
            RetrieverError: The engine failed.
        """

    @abstractmethod
    def load(self, corpus: Corpus, folder: Path, analysis: Analysis) -> Retriever:
        """Opens what `build` wrote, for the same corpus.

        Raises:
            DataError: The files are damaged or belong to another corpus.
            MissingDependencyError: A package is missing.
            RetrieverError: The engine failed.
        """


@dataclass(frozen=True, slots=True)
class IndexCost:
    """What a dense index takes; sizes are bytes."""

    disk: int
    """Files of the index, without the embeddings it was built from."""
    memory: int
    """In use while searching; mapped files count in full, though the system may give their pages back."""
    build_memory: int
    """In use while building."""
    products: float | None = None
    """Work of the build: the number of multiply-adds of large matrix products that take as long; `None` if unknown."""


class VectorIndex(ABC):
    """An open dense index: the nearest rows of vectors under the inner product."""

    size: int
    """Number of rows."""
    dim: int
    """Length of a row."""
    candidates: int | None = None
    """`None` for an exact index. Otherwise how many results to ask for, always, whatever is needed of them: what an
    approximate index finds depends on that number, and a short list must be the start of a long one."""

    @abstractmethod
    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns the rows with the largest inner products.

        Args:
            queries: Shape (queries, dim).
            k: How many a query, in [1, size].

        Returns:
            Scores and places, both of shape (queries, k), best first. Where fewer were found the rest has place -1.
        """

    def close(self) -> None:  # noqa: B027 - most indexes have nothing to free
        """Frees what the index holds."""


class DenseIndex(ABC):
    """Settings of a dense index."""

    package: ClassVar[str | None] = None
    """The package whose minor version decides whether its files can be read; `None` if there is none."""
    search_only: ClassVar[frozenset[str]] = frozenset()
    """Settings that do not change the index, so that one index may be opened with any value of them."""

    @abstractmethod
    def build(self, embeddings: NDArray[Any], folder: Path) -> None:
        """Writes the index of embeddings.

        Args:
            embeddings: Unit vectors, float32 or float16, of shape (passages, dim), usually mapped from disk. Read in
                slices and never as a whole.
            folder: An empty folder. An index that needs nothing besides the embeddings leaves it empty.

        Raises:
            ConfigError: The settings do not fit the embeddings.
            MissingDependencyError: A package is missing.
            RetrieverError: The engine failed.
        """

    @abstractmethod
    def load(self, embeddings: NDArray[Any], folder: Path) -> VectorIndex:
        """Opens what `build` wrote, for the same embeddings, mapping files rather than reading them.

        Raises:
            DataError: The files are damaged or belong to other embeddings.
            MissingDependencyError: A package is missing.
            RetrieverError: The engine failed.
        """

    @abstractmethod
    def cost(self, passages: int, dim: int, itemsize: int = 4) -> IndexCost:
        """Returns what an index of that many passages takes.

        Args:
            passages: Number of rows.
            dim: Length of a row.
            itemsize: Bytes of one stored number of the embeddings.
        """


class RerankEngine(ABC):
    """Settings of a reranker."""

    needs_encoder: ClassVar[bool] = False
    """Whether it works with the library's own encoder."""

    @abstractmethod
    def open(self, config: LibraryConfig, encoder: Encoder | None) -> Reranker:
        """Loads the reranker.

        Args:
            config: Gives device, precision and batch size.
            encoder: The library's encoder, where `needs_encoder` is set.

        Raises:
            ConfigError: There is no such model.
            MissingDependencyError: A package or model is missing.
        """


def keyword_engine(config: LibraryConfig) -> KeywordEngine:
    """Returns the engine that `library.bm25` names."""
    return make("bm25", config.bm25, KeywordEngine, KEYWORD_ENGINES)  # type: ignore[type-abstract]


def dense_index(config: LibraryConfig) -> DenseIndex:
    """Returns the index that `library.dense_index` names."""
    return make("dense_index", config.dense_index or "flat", DenseIndex, DENSE_INDEXES)  # type: ignore[type-abstract]


def rerank_engine(config: LibraryConfig) -> RerankEngine | None:
    """Returns the reranker that `library.reranker` names; a name that is no engine is that of a cross-encoder."""
    value = config.reranker
    if value is None:
        value = "late-interaction" if config.dense else "none"
    if value == "none":
        return None
    if isinstance(value, RerankEngine):
        return value
    arguments: dict[str, Any]
    if value == "late-interaction":
        name, arguments = "LateInteraction", {"cache_mb": config.rerank_cache_mb}
    else:
        name, arguments = "CrossEncoder", {"model": value}
    spec = {"class_path": f"rpl.retrieval.rerank.rerankers.{name}", "init_args": arguments}
    return make("reranker", spec, RerankEngine, {})  # type: ignore[type-abstract]


def make(key: str, value: Any, base: type[T], names: Mapping[str, str]) -> T:
    """Returns an engine from what stands in YAML, or in a manifest.

    Args:
        key: The key below `library`, for messages.
        value: An engine, a short name, a dotted class path, or a mapping of `class_path` and `init_args`.
        base: The class it must have.
        names: Short names, with the class path of each.

    Raises:
        ConfigError: There is no such class, or its arguments are wrong.
    """
    if isinstance(value, base):
        return value
    check_name(key, value, base, names)
    spec: dict[str, Any] = {"class_path": names.get(value, value)} if isinstance(value, str) else {**value}
    path, arguments = str(spec.get("class_path")), dict(spec.get("init_args") or {})
    if current_path(path) != path:
        raise ConfigError(f"library.{key}: {path} is now {current_path(path)}; change the name")
    cls = class_at(f"library.{key}", path, base, base.__name__)
    takes = list(inspect.signature(cls).parameters)
    surplus = [argument for argument in arguments if argument not in takes]
    if surplus:
        wrong, known = ", ".join(map(repr, surplus)), ", ".join(takes) or "no arguments"
        raise ConfigError(f"library.{key}: {cls.__name__} takes {known}; it does not take {wrong}")
    try:
        return cls(**arguments)
    except TypeError as error:
        raise ConfigError(f"library.{key}: {cls.__name__} cannot be made from {arguments}: {error}") from error


def current_path(path: str) -> str:
    """Returns the class path of an engine that may be named as it was in an earlier version.

    >>> current_path("rpl.retrieval.faiss_indexes.HNSW")
    'rpl.retrieval.dense.faiss_indexes.HNSW'
    """
    module, _, name = path.rpartition(".")
    return f"{_MOVED.get(module, module)}.{name}"


def check_name(key: str, value: Any, base: type, names: Mapping[str, str]) -> None:
    """Checks what can be checked without importing an engine.

    Raises:
        ConfigError: The value is neither a short name nor a class.
    """
    text = value if isinstance(value, str) else str(value.get("class_path")) if isinstance(value, Mapping) else ""
    gone = _GONE.get(key)
    if gone is not None and (text == gone or f".{gone}_" in text):
        raise ConfigError(f"library.{key}: {gone} is no longer offered; use one of {', '.join(names)}")
    if isinstance(value, base | Mapping) or (isinstance(value, str) and (value in names or _dotted(value))):
        return
    if isinstance(value, str) and "class_path" in value:
        # What a parser could not make an engine of arrives here as the text it was.
        import yaml

        make(key, yaml.safe_load(value), base, names)
        raise ConfigError(f"library.{key}: {value} has a value of a wrong type in init_args")
    raise ConfigError(f"library.{key} must be one of {', '.join(names)}, or a class_path; got {value!r}")


def _dotted(value: str) -> bool:
    parts = value.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def describe(engine: Any, built: bool = False) -> Any:
    """Returns an engine as JSON: its short name where it has the default settings, else `class_path` and `init_args`.

    Args:
        engine: Anything that is no engine comes back unchanged.
        built: Whether to leave out the settings that do not change the index.
    """
    if not isinstance(engine, KeywordEngine | DenseIndex | RerankEngine):
        return engine
    cls = type(engine)
    path = f"{cls.__module__}.{cls.__qualname__}"
    names = [f.name for f in fields(engine)] if is_dataclass(engine) else list(inspect.signature(cls).parameters)
    left_out = getattr(engine, "search_only", ()) if built else ()
    arguments = {name: getattr(engine, name) for name in names if name not in left_out}
    if path in _ALIASES and arguments == {name: getattr(cls(), name) for name in arguments}:
        return _ALIASES[path]
    return {"class_path": path, "init_args": arguments}


def config_values(config: Any) -> Any:
    """Returns a configuration as JSON values, as `dataclasses.asdict` does, with engines as YAML writes them."""
    if isinstance(config, KeywordEngine | DenseIndex | RerankEngine):
        return describe(config)
    if is_dataclass(config) and not isinstance(config, type):
        return {f.name: config_values(getattr(config, f.name)) for f in fields(config)}
    if isinstance(config, list | tuple):
        return [config_values(item) for item in config]
    if isinstance(config, dict):
        return {key: config_values(value) for key, value in config.items()}
    return config
