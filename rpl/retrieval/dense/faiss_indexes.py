"""Dense indexes with faiss: exact over mapped embeddings, scalar-quantised, HNSW, and inverted lists with PQ codes.

| index | bytes a passage | finds | for |
| --- | --- | --- | --- |
| `Flat` | none besides the embeddings | all | up to about a million passages |
| `FP16` | 2 · dim | nearly all | the same at half the memory |
| `SQ8` | dim | nearly all | the same at a quarter |
| `HNSW` | numbers + 8.5 · neighbours | most | fast single queries, where memory suffices |
| `IVFPQ` | code_bytes + 8 | many | tens of millions of passages |

The last four find candidates in a compressed form and rank them anew by their exact inner products, with the rows of
the mapped embeddings, so that scores are those of `Flat`. Source: Douze et al., 2024, "The Faiss library".
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from rpl.core.errors import ConfigError, DataError, RetrieverError
from rpl.core.progress import progress_bar
from rpl.retrieval.base import MAX_K
from rpl.retrieval.corpus.corpus import REBUILD
from rpl.retrieval.dense.faiss_search import FaissIndex, MappedFlatIndex, import_faiss, wants_gpu
from rpl.retrieval.engines import DenseIndex, IndexCost, VectorIndex

INDEX_FILE = "index.faiss"

_CHUNK = 65_536
_ROUNDS, _CODE_ROUNDS = 10, 25
"""Rounds of k-means for the centres of inverted lists and of codes; what faiss does by default."""
_CODE_WORK = 130
"""Writing one number of a code takes as long as so many multiply-adds of a matrix product."""
_STEP_WORK = 16
"""Looking at one number in a walk through a graph does: the walk waits for memory, and asks for no products."""
_SEED = 0

Storage = Literal["float32", "float16", "sq8"]
_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "sq8": 1}


@dataclass(frozen=True)
class Flat(DenseIndex):
    """Exact search. It needs no files besides the embeddings: float32 ones are mapped, float16 ones held in memory."""

    search_only: ClassVar[frozenset[str]] = frozenset({"gpu"})

    gpu: bool | None = None
    """Whether to search on a GPU; `None` means where faiss has one."""

    def build(self, embeddings: NDArray[Any], folder: Path) -> None:
        """Writes nothing; see `DenseIndex.build`."""
        import_faiss()

    def load(self, embeddings: NDArray[Any], folder: Path) -> VectorIndex:
        """Opens the embeddings; see `DenseIndex.load`."""
        faiss = import_faiss()
        half = embeddings.dtype == np.float16
        if wants_gpu(faiss, self.gpu):
            settings = faiss.GpuIndexFlatConfig()
            settings.useFloat16 = half
            resources = faiss.StandardGpuResources()
            index: Any = faiss.GpuIndexFlatIP(resources, embeddings.shape[1], settings)
            index.resources = resources  # must live as long as the index
        elif half:
            kind = faiss.ScalarQuantizer.QT_fp16
            index = faiss.IndexScalarQuantizer(embeddings.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        else:
            return MappedFlatIndex(embeddings)
        for start in range(0, len(embeddings), _CHUNK):
            index.add(np.ascontiguousarray(embeddings[start : start + _CHUNK], dtype=np.float32))
        return FaissIndex(index)

    def cost(self, passages: int, dim: int, itemsize: int = 4) -> IndexCost:
        """Returns the size of the embeddings as memory; see `DenseIndex.cost`."""
        return IndexCost(disk=0, memory=passages * dim * itemsize, build_memory=0, products=0.0)


@dataclass(frozen=True)
class _Built(DenseIndex):
    """An index in a file of its own.

    Raises:
        ConfigError: There are fewer candidates than a program may ask for.
    """

    package: ClassVar[str | None] = "faiss-cpu"
    search_only: ClassVar[frozenset[str]] = frozenset({"candidates", "rescore"})

    candidates: int = 200
    """Results taken from the index for each query, at least 100, of which the best are kept after ranking anew."""
    rescore: bool = True
    """Whether candidates are ranked by their exact inner products. Without it the embeddings are not read."""

    def __post_init__(self) -> None:
        if self.candidates < MAX_K:
            raise ConfigError(f"library.dense_index: candidates must be at least {MAX_K}, got {self.candidates}")

    @abstractmethod
    def _make(self, faiss: Any, passages: int, dim: int) -> Any:
        """Returns the empty faiss index."""

    def _training_rows(self, passages: int) -> int:
        """Returns how many rows to learn from."""
        return min(passages, 100_000)

    def _cost(
        self, size: int, passages: int, dim: int, itemsize: int, training: int = 0, products: float = 0.0
    ) -> IndexCost:
        """Returns the cost of an index of `size` bytes that learns with `training` bytes and multiplies matrices."""
        # float32 rows are added as they are mapped, others are converted a slice at a time.
        converted = 0 if itemsize == 4 else 4 * dim * min(passages, _CHUNK)
        products += _CODE_WORK * passages * dim
        return IndexCost(disk=size, memory=size, build_memory=max(size + converted, training), products=products)

    def _reserve(self, faiss: Any, index: Any, passages: int) -> None:
        """Makes room for all rows at once: what grows by doubling is in memory twice while it is moved."""
        _make_room(index.codes, passages * index.code_size)

    def _open(self, faiss: Any, index: Any) -> Any:
        """Returns the index as it is searched."""
        return index

    @property
    def _flags(self) -> str:
        return "IO_FLAG_MMAP_IFC"

    def build(self, embeddings: NDArray[Any], folder: Path) -> None:
        """Trains on a sample, adds all rows and writes one file; see `DenseIndex.build`."""
        faiss = import_faiss()
        passages, dim = embeddings.shape
        index = self._make(faiss, passages, dim)
        name = type(self).__name__
        try:
            if not index.is_trained:
                index.train(_sample(embeddings, self._training_rows(passages)))
            self._reserve(faiss, index, passages)
            with progress_bar(passages, f"dense index ({name})", "passage") as bar:
                for start in range(0, passages, _CHUNK):
                    rows = np.ascontiguousarray(embeddings[start : start + _CHUNK], dtype=np.float32)
                    index.add(rows)
                    bar.update(len(rows))
            faiss.write_index(index, str(folder / INDEX_FILE))
        except RuntimeError as error:
            raise RetrieverError(f"library.dense_index: faiss cannot build {name}: {error}") from error

    def load(self, embeddings: NDArray[Any], folder: Path) -> VectorIndex:
        """Maps the file; see `DenseIndex.load`."""
        faiss = import_faiss()
        path = folder / INDEX_FILE
        try:
            index = faiss.read_index(str(path), getattr(faiss, self._flags))
        except RuntimeError as error:
            raise DataError(f"{path}: the dense index cannot be read ({error}); {REBUILD}") from error
        if (index.ntotal, index.d) != tuple(embeddings.shape):
            raise DataError(
                f"{path}: the dense index holds {index.ntotal} vectors of length {index.d}, "
                f"the embeddings have shape {embeddings.shape}; {REBUILD}"
            )
        candidates = min(self.candidates, int(index.ntotal))
        return FaissIndex(self._open(faiss, index), candidates, embeddings if self.rescore else None)


@dataclass(frozen=True)
class SQ8(_Built):
    """All passages are scanned in 8 bits a number."""

    def _make(self, faiss: Any, passages: int, dim: int) -> Any:
        return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)

    def cost(self, passages: int, dim: int, itemsize: int = 4) -> IndexCost:
        """Returns one byte a number; see `DenseIndex.cost`."""
        return self._cost(passages * dim, passages, dim, itemsize, 4 * dim * self._training_rows(passages))


@dataclass(frozen=True)
class FP16(_Built):
    """All passages are scanned in 16 bits a number, mapped from a file."""

    def _make(self, faiss: Any, passages: int, dim: int) -> Any:
        return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)

    def cost(self, passages: int, dim: int, itemsize: int = 4) -> IndexCost:
        """Returns two bytes a number; see `DenseIndex.cost`."""
        return self._cost(2 * passages * dim, passages, dim, itemsize)


@dataclass(frozen=True)
class HNSW(_Built):
    """A graph of near neighbours, walked from coarse to fine (Malkov and Yashunin, 2016).

    With several threads the graph, and so which passages it misses, may differ between builds.

    Raises:
        ConfigError: A number is too small.
    """

    search_only: ClassVar[frozenset[str]] = _Built.search_only | {"search_effort"}

    neighbours: int = 32
    """Links of a passage in each layer (M), at least 2; twice as many in the lowest."""
    build_effort: int = 200
    """Nodes kept in view while building (efConstruction)."""
    search_effort: int = 200
    """Nodes kept in view while searching (efSearch); at least `candidates` are."""
    storage: Storage = "float32"
    """Number format of the vectors in the graph."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("neighbours", 2), ("build_effort", 1), ("search_effort", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"library.dense_index: {name} must be at least {least}, got {getattr(self, name)}")
        if self.storage not in _BYTES:
            raise ConfigError(f"library.dense_index: storage must be one of {', '.join(_BYTES)}, got {self.storage!r}")

    def _make(self, faiss: Any, passages: int, dim: int) -> Any:
        metric = faiss.METRIC_INNER_PRODUCT
        if self.storage == "float32":
            index = faiss.IndexHNSWFlat(dim, self.neighbours, metric)
        else:
            kinds = {"float16": faiss.ScalarQuantizer.QT_fp16, "sq8": faiss.ScalarQuantizer.QT_8bit}
            index = faiss.IndexHNSWSQ(dim, kinds[self.storage], self.neighbours, metric)
        index.hnsw.efConstruction = self.build_effort
        return index

    def _open(self, faiss: Any, index: Any) -> Any:
        index.hnsw.efSearch = max(self.search_effort, self.candidates)
        return index

    def cost(self, passages: int, dim: int, itemsize: int = 4) -> IndexCost:
        """Returns vectors and links; see `DenseIndex.cost`."""
        # A link has 4 bytes; besides, each node has a level of 4 and an offset of 8.
        size = int(passages * (dim * _BYTES[self.storage] + 4 * self._links + 12))
        training = 4 * dim * self._training_rows(passages) if self.storage == "sq8" else 0
        steps = passages * math.log2(max(2, passages)) * self.build_effort
        return self._cost(size, passages, dim, itemsize, training, _STEP_WORK * steps * dim)

    @property
    def _links(self) -> float:
        """Links of a node on average: 2M in the lowest layer, and M in each of the few above it."""
        return 2 * self.neighbours * (1 + 0.5 / (self.neighbours - 1))

    def _reserve(self, faiss: Any, index: Any, passages: int) -> None:
        super()._reserve(faiss, faiss.downcast_index(index.storage), passages)
        _make_room(index.hnsw.neighbors, int(passages * self._links))


@dataclass(frozen=True)
class IVFPQ(_Built):
    """Inverted lists of product-quantised codes (Jégou, Douze and Schmid, 2011): the nearest lists are scanned.

    Raises:
        ConfigError: A number is out of range.
    """

    search_only: ClassVar[frozenset[str]] = _Built.search_only | {"probes", "gpu"}

    lists: int | None = None
    """Clusters of passages; `None` means four times the square root of their number."""
    probes: int = 64
    """Clusters that are scanned for a query."""
    code_bytes: int | None = None
    """Bytes of a code, a divisor of the embeddings' length (at 8 bits a part); `None` means a sixth to a quarter."""
    bits: int = 8
    """Bits of each part of a code, in [4, 12]; 8 except for tests and studies."""
    gpu: bool | None = None
    """Whether to search on a GPU; `None` means where faiss has one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lists", "probes", "code_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"library.dense_index: {name} must be at least 1, got {value}")
        if not 4 <= self.bits <= 12:
            raise ConfigError(f"library.dense_index: bits must be in [4, 12], got {self.bits}")

    @property
    def _flags(self) -> str:
        return "IO_FLAG_MMAP"

    def _lists(self, passages: int) -> int:
        return self.lists or max(1, round(4 * math.sqrt(passages)))

    def _parts(self, dim: int) -> int:
        parts = self.code_bytes * 8 // self.bits if self.code_bytes else dim // 6 if dim % 6 == 0 else dim // 4
        if parts < 1 or dim % parts:
            raise ConfigError(
                f"library.dense_index: {parts} parts of a code do not divide embeddings of length {dim}; "
                "set code_bytes to a divisor"
            )
        return parts

    def _training_rows(self, passages: int) -> int:
        # 64 rows a cluster; faiss itself would throw away what is over 256.
        return min(passages, max(100_000, 64 * self._lists(passages)))

    def _make(self, faiss: Any, passages: int, dim: int) -> Any:
        lists, parts = self._lists(passages), self._parts(dim)
        least = max(lists, 1 << self.bits)
        if passages < least:
            raise ConfigError(
                f"library.dense_index: IVFPQ with {lists} lists and {self.bits} bits needs at least {least} passages "
                f"to learn from, the corpus has {passages}; use flat"
            )
        quantizer = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFPQ(quantizer, dim, lists, parts, self.bits, faiss.METRIC_INNER_PRODUCT)
        # Unit vectors have unit centres; and our own sample is already as large as we want it.
        index.cp.spherical = True
        for settings in (index.cp, index.pq.cp):
            settings.seed = _SEED
            settings.min_points_per_centroid = 1
        return index

    def _open(self, faiss: Any, index: Any) -> Any:
        if wants_gpu(faiss, self.gpu):
            resources = faiss.StandardGpuResources()
            index = faiss.index_cpu_to_gpu(resources, 0, index)
            index.resources = resources  # must live as long as the index
        index.nprobe = min(self.probes, int(index.nlist))
        return index

    def cost(self, passages: int, dim: int, itemsize: int = 4) -> IndexCost:
        """Returns codes, ids and centres; see `DenseIndex.cost`."""
        lists, parts = self._lists(passages), self._parts(dim)
        size = passages * (math.ceil(parts * self.bits / 8) + 8) + lists * dim * 4 + dim * 4 * (1 << self.bits)
        # The sample, and for the codes a part of it and what that leaves over from the centres.
        rows = self._training_rows(passages)
        code_rows = min(rows, 256 << self.bits)
        training = 4 * dim * (rows + 2 * code_rows)
        # Rounds of k-means over the sample, then each row finds its list; and the same for the codes.
        products = (lists * (_ROUNDS * rows + passages) + (_CODE_ROUNDS * code_rows + passages << self.bits)) * dim
        return self._cost(size, passages, dim, itemsize, training, products)

    def _reserve(self, faiss: Any, index: Any, passages: int) -> None:
        """Does nothing: each list grows by itself."""


def _make_room(vector: Any, size: int) -> None:
    """Lets a vector of faiss have the memory that it will need; it stays empty."""
    vector.resize(size)
    vector.resize(0)


def _sample(embeddings: NDArray[Any], count: int) -> NDArray[np.float32]:
    """Returns `count` rows drawn without repeats, in rising order of place, so that the disk is read front to back."""
    chosen = np.sort(np.random.default_rng(_SEED).choice(len(embeddings), count, replace=False))
    return np.ascontiguousarray(embeddings[chosen], dtype=np.float32)
