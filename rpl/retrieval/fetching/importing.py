"""Makes an index folder from vectors that another program computed.

Nothing says that a file of vectors belongs to a corpus and an encoder, so a sample of passages is encoded and compared
before the first row is taken. An index built over vectors of something else would answer, always, and be wrong.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rpl.core.errors import ConfigError, DataError
from rpl.core.files import read_jsonl, write_json
from rpl.core.progress import progress_bar
from rpl.retrieval.corpus.corpus import Corpus, text_field, title_and_text
from rpl.retrieval.corpus.store import open_store
from rpl.retrieval.dense.encoders import Encoder
from rpl.retrieval.dense.search import write_at
from rpl.retrieval.fetching.vectors import VectorFile
from rpl.retrieval.indexing.folder import build_index
from rpl.retrieval.indexing.loading import CORPUS_FOLDER, load_encoder
from rpl.retrieval.indexing.plan import STATE_FILE, GivenEmbeddings
from rpl.retrieval.library_config import LibraryConfig

Say = Callable[[str], None]

SAMPLE = 16
"""How many passages are encoded and compared, evenly spread over the corpus."""
LEAST_SIMILARITY = 0.999
"""What the median cosine between vectors of one text by one encoder must reach. With all-MiniLM-L6-v2 and 100
passages of Wikipedia it is 1.0000 in half precision and where texts are cut at 180 tokens, 0.9966 for titles without
their quotes, 0.9939 with another prefix, 0.9934 where texts are cut at 128 tokens, 0.991 without titles, and 0.00 for
other passages."""
SPREAD = 100.0
"""How many times as far from one as the median a single cosine may be: 0.9 by default. A long text that was cut had
0.978; passages that are in order for the greater part of a corpus only would show here."""
LENGTH_TOLERANCE = 0.01
"""How far from one the length of a vector may be, unless they are to be scaled."""

_SLICE = 32_768
_HEAD = 1_000


def import_index(
    corpus_path: str | Path,
    vectors: Sequence[str | Path],
    out_dir: str | Path,
    config: LibraryConfig,
    normalize: bool = False,
    use_up: bool = False,
    progress: Say | None = None,
    least_similarity: float = LEAST_SIMILARITY,
) -> Path:
    """Builds an index folder whose embeddings are read from files instead of being computed.

    Args:
        corpus_path: `.jsonl` or `.jsonl.gz`, in the order of the vectors.
        vectors: A flat faiss index or a `.npy` file, or the parts of one, in order.
        out_dir: The folder to make.
        config: As for `build_index`; `encoder` must be the one that computed the vectors.
        normalize: Whether to scale each vector to length one.
        use_up: Whether to give the disk space of each row back once it is in the index; the files are gone afterwards.
        progress: Receives one line a step.
        least_similarity: Median cosine, in (0, 1], that a sample of the vectors must have with what the encoder makes
            of their passages.

    Returns:
        The folder.

    Raises:
        DataError: The vectors are damaged, not of length one, or not those of this corpus and encoder.
        ConfigError: `dense` is off, or a setting does not fit.
        RetrieverError: The finished index does not find its own passages.
    """
    if not 0 < least_similarity <= 1:
        raise ConfigError(f"--least_similarity must be in (0, 1], got {least_similarity}")
    if not config.dense:
        raise ConfigError("library.dense is false, but vectors are of use to dense search alone; set it to true")
    files = VectorFile([Path(path) for path in vectors], cut=use_up)
    encoder = load_encoder(config)
    if files.dim != encoder.dim:
        raise DataError(
            f"{files.name}: vectors of length {files.dim}, but library.encoder {encoder.name!r} makes such of length "
            f"{encoder.dim}; name the encoder that they come from"
        )

    head = corpus_head(Path(corpus_path))
    if files.whole:
        # What is wrong everywhere is wrong here, and hours earlier.
        require_same(files, head, encoder, least_similarity)

    def write(path: Path) -> None:
        corpus = open_store(path.with_name(CORPUS_FOLDER))
        write_embeddings(files, corpus, encoder, path, config.embedding_dtype, normalize, use_up, least_similarity)

    # They count as the encoder's own, as the sample says, so that another index over them encodes nothing.
    freed = sum(path.stat().st_size for path in files.paths) if use_up else 0
    return build_index(corpus_path, out_dir, config, progress, GivenEmbeddings("", write, freed))


def corpus_head(path: Path) -> Corpus:
    """Returns the first passages of a corpus file.

    Raises:
        DataError: One of them is wrong; the message names file, line and field.
    """
    rows = []
    for number, record in itertools.islice(read_jsonl(path), _HEAD):
        where = f"{path}:{number}"
        rows.append((text_field(record, "id", where), *title_and_text(record, where)))
    if not rows:
        raise DataError(f"{path}: there are no passages in this file")
    return Corpus(*zip(*rows, strict=True))


def write_embeddings(
    vectors: VectorFile,
    corpus: Corpus,
    encoder: Encoder,
    path: Path,
    dtype: str,
    normalize: bool = False,
    use_up: bool = False,
    least_similarity: float = LEAST_SIMILARITY,
) -> None:
    """Writes an embeddings file from vectors, from its last row to its first, and goes on where a killed process was.

    Args:
        vectors: Where they come from.
        corpus: Their passages.
        encoder: The one that computed them.
        path: The `.npy` file to write.
        dtype: Its number format.
        normalize: See `import_index`.
        use_up: See `import_index`. The order is what makes it possible: files can be shortened at their end alone.
        least_similarity: See `import_index`.

    Raises:
        DataError: See `import_index`.
    """
    if vectors.rows != len(corpus):
        raise DataError(
            f"{vectors.name}: {vectors.rows} vectors for {len(corpus)} passages; the corpus is not the one they were "
            "computed from"
        )
    state = path.with_name(f".{path.name}.imported")
    origin = str(vectors.paths[0].absolute())
    left = _left(state, path, origin)
    if left is None:
        left = vectors.rows
        vectors.require(left)
        require_same(vectors, corpus, encoder, least_similarity)
        # What an encoder had begun here is not continued, neither now nor by a later encoder.
        path.with_name(STATE_FILE).unlink(missing_ok=True)
        shape = (vectors.rows, vectors.dim)
        np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape).flush()
        write_json(state, {"origin": origin, "left": left})
    vectors.require(left)
    start_of_rows = np.load(path, mmap_mode="r").offset
    with (
        path.open("r+b", buffering=0) as file,
        progress_bar(vectors.rows, f"embeddings ({vectors.name})", "passage", initial=vectors.rows - left) as bar,
    ):
        while left > 0:
            stop, left = left, max(0, left - _SLICE)
            rows = _checked(vectors.read(left, stop), vectors.name, left, normalize).astype(dtype, copy=False)
            # Written past the mapping, so that a full disk is an error and not a signal that kills the process.
            data = np.ascontiguousarray(rows).data.cast("B")
            write_at(file.fileno(), data, start_of_rows + left * rows.strides[0])
            os.fsync(file.fileno())
            write_json(state, {"origin": origin, "left": left})
            if use_up:
                vectors.cut_at(left)
            bar.update(stop - left)
    state.unlink()


def require_same(
    vectors: VectorFile, corpus: Corpus, encoder: Encoder, least_similarity: float = LEAST_SIMILARITY
) -> None:
    """Compares a sample of vectors with what the encoder makes of their passages.

    Args:
        vectors: Where they come from.
        corpus: Their passages, or the first of them.
        encoder: The one that computed them.
        least_similarity: See `import_index`.

    Raises:
        DataError: They are not alike.
    """
    size = min(len(corpus), vectors.rows)
    places = sorted({round(place) for place in np.linspace(0, size - 1, min(SAMPLE, size))})
    ours = encoder.encode([corpus.contents(place) for place in places], "passage")
    theirs = np.concatenate([vectors.read(place, place + 1) for place in places])
    lengths = np.linalg.norm(theirs, axis=1)
    alike = np.einsum("ij,ij->i", ours, theirs) / np.where(lengths > 0, lengths, 1.0)
    found = float(np.median(alike))
    worst = int(np.argmin(alike))
    if not (found >= least_similarity and alike[worst] >= 1.0 - SPREAD * (1.0 - least_similarity)):
        raise DataError(
            f"{vectors.name}: these are not the vectors that encoder {encoder.name!r} makes of this corpus: the median "
            f"cosine of {len(places)} passages is {found:.4f} instead of at least {least_similarity}, the lowest "
            f"{alike[worst]:.4f} (passage {corpus.ids[places[worst]]!r}, row {places[worst]}). Far from 1 it is "
            "another corpus, order or encoder; near 1 another passage_prefix, encoder_pooling or encoder_max_tokens, "
            "or texts in another form, which a lower --least_similarity lets pass"
        )


def _checked(rows: NDArray[np.float32], name: str, start: int, normalize: bool) -> NDArray[np.float32]:
    lengths = np.linalg.norm(rows, axis=1)
    wrong = ~np.isfinite(lengths) | (lengths == 0)
    if wrong.any():
        raise DataError(f"{name}: the vector in row {start + int(np.argmax(wrong))} is zero or not finite")
    if normalize:
        scaled: NDArray[np.float32] = rows / lengths[:, None]
        return scaled
    wrong = np.abs(lengths - 1.0) > LENGTH_TOLERANCE
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"{name}: the vector in row {start + row} has length {lengths[row]:.3f} instead of 1; if cosine similarity "
            "is what they were made for, scale them (--normalize)"
        )
    return rows


def _left(state: Path, path: Path, origin: str) -> int | None:
    """Returns how many rows an earlier process left to copy; `None` where there was none."""
    if not path.exists() or path.with_name(STATE_FILE).exists():
        return None
    try:
        found = json.loads(state.read_text(encoding="utf-8"))
        return int(found["left"]) if found["origin"] == origin else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
