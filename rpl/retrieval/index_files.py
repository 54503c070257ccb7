"""Index folders: built once under a temporary name, tested, renamed into place, and checked at every load.

A folder holds `corpus.jsonl`, the keyword index in `bm25/` (or `lucene/`, `milvus/`), where dense search is on
`embeddings.npy` and what its index needs besides them in `dense/`, and `manifest.json`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rpl.errors import ConfigError, DataError
from rpl.files import write_jsonl
from rpl.retrieval.base import Retriever
from rpl.retrieval.canary import probe, require_sound
from rpl.retrieval.config import LibraryConfig
from rpl.retrieval.corpus import REBUILD, Corpus, read_corpus
from rpl.retrieval.encoders import HASH_ENCODER, Encoder, HashEncoder, SentenceEncoder, resolve_encoder
from rpl.retrieval.engines import dense_index, keyword_engine
from rpl.retrieval.locking import folder_lock
from rpl.retrieval.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    index_settings,
    package_versions,
    read_manifest,
    reconcile,
    write_manifest,
)
from rpl.retrieval.tokens import TOKENIZER_VERSION, Tokenizer

CORPUS_FILE = "corpus.jsonl"
EMBEDDINGS_FILE = "embeddings.npy"
DENSE_FOLDER = "dense"

Say = Callable[[str], None]


@dataclass(frozen=True)
class LoadedIndex:
    """An index folder, open and tested."""

    config: LibraryConfig
    """The settings it was opened with: those asked for, with defaults replaced by what the index was built with."""
    corpus: Corpus
    bm25: Retriever
    dense: Retriever | None
    encoder: Encoder | None


def load_encoder(config: LibraryConfig) -> Encoder:
    """Loads the encoder that a config names.

    Raises:
        ConfigError: There is no such encoder.
        MissingDependencyError: The model or a package is missing and cannot be fetched.
    """
    if config.encoder == HASH_ENCODER:
        return HashEncoder()
    return SentenceEncoder(
        Path(resolve_encoder(config.encoder)),
        config.encoder,
        config.query_prefix,
        config.passage_prefix,
        config.device,
        config.encoder_batch_size,
        config.encoder_precision,
        config.encoder_pooling,
        config.encoder_max_tokens,
    )


def is_index_folder(folder: Path) -> bool:
    """Tells whether there is an index in a folder."""
    return (folder / MANIFEST).is_file()


def build_index(
    corpus_path: str | Path, out_dir: str | Path, config: LibraryConfig, progress: Say | None = None
) -> Path:
    """Makes an index folder from a corpus file. An index of the same corpus and settings is kept as it is.

    Args:
        corpus_path: `.jsonl` or `.jsonl.gz`.
        out_dir: The folder to make; may hold an older index of the same corpus, which is then replaced.
        config: What to index and how (`corpus` and `index_dir` are not read).
        progress: Receives the estimate and one line a step.

    Returns:
        The folder.

    Raises:
        DataError: The corpus is wrong, or the folder holds something else.
        ConfigError: A setting does not fit, or the disk is too small.
        RetrieverError: The finished index does not find its own passages.
    """
    corpus = read_corpus(corpus_path)
    ensure_index(corpus, Path(out_dir), config, load_encoder(config) if config.dense else None, progress)
    return Path(out_dir)


def ensure_index(
    corpus: Corpus, folder: Path, config: LibraryConfig, encoder: Encoder | None, progress: Say | None = None
) -> None:
    """Builds an index of a corpus unless the folder already holds it; one process at a time. See `build_index`."""
    say = progress or _silent
    with folder_lock(folder, on_wait=lambda: say(f"waiting for another process that is building {folder}")):
        if _holds(folder, corpus, config, encoder):
            return
        _build(corpus, folder, config, encoder, say)


def load_index(
    folder: str | Path, config: LibraryConfig, corpus: Corpus | None = None, encoder: Encoder | None = None
) -> LoadedIndex:
    """Opens an index folder and tests it.

    Args:
        folder: Made by `build_index`.
        config: How to open it; see `reconcile` for settings that the index decides.
        corpus: The passages, where they have been read already; must be those that were indexed.
        encoder: Where it has been loaded already.

    Raises:
        DataError: The index is damaged, or stale: made from another corpus or by another encoder.
        ConfigError: A setting disagrees with the index.
        RetrieverError: The index does not find its own passages.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    config = reconcile(config, manifest, folder)
    if corpus is None:
        corpus = read_corpus(folder / manifest.corpus_file)
        if corpus.fingerprint != manifest.corpus_fingerprint:
            raise DataError(f"{folder}: its corpus file is not the one that was indexed; {REBUILD}")
    elif corpus.fingerprint != manifest.corpus_fingerprint:
        raise DataError(_stale(folder))
    bm25 = _load_keyword(folder, config, corpus)
    require_sound("keyword", probe(bm25.search, corpus))
    if not config.dense:
        return LoadedIndex(config, corpus, bm25, None, encoder)
    encoder = encoder or load_encoder(config)
    _check_encoder(encoder, manifest, folder)
    dense = _load_dense(folder, config, corpus, encoder)
    require_sound("dense", probe(dense.search, corpus))
    return LoadedIndex(config, corpus, bm25, dense, encoder)


def _holds(folder: Path, corpus: Corpus, config: LibraryConfig, encoder: Encoder | None) -> bool:
    """Tells whether a folder holds the very index that is asked for; refuses folders that hold something else."""
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise DataError(f"{folder}: is a file; an index needs a folder")
    if not is_index_folder(folder):
        if any(folder.iterdir()):
            raise DataError(f"{folder}: holds files that are not an index; choose an empty or new folder")
        return False
    manifest = read_manifest(folder)
    if manifest.corpus_fingerprint != corpus.fingerprint:
        raise DataError(_stale(folder))
    fingerprint = encoder.fingerprint if encoder is not None else None
    return manifest.settings == index_settings(config) and manifest.encoder_fingerprint == fingerprint


def _build(corpus: Corpus, folder: Path, config: LibraryConfig, encoder: Encoder | None, say: Say) -> None:
    from rpl.retrieval.estimate import estimate, require_space

    tokenizer = Tokenizer(config.stemmer, config.stop_words)
    cost = estimate(corpus, tokenizer, encoder, config.embedding_dtype)
    say(f"building index {folder}: {cost}")
    require_space(folder.parent, cost.disk_bytes)
    prefix = f".{folder.name}.building."
    for left_over in folder.parent.glob(f"{prefix}*"):
        # The lock is ours, so whoever made it is gone.
        shutil.rmtree(left_over)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        records = ({"id": p.id, "title": p.title, "text": p.text} for p in corpus)
        write_jsonl(work / CORPUS_FILE, records)
        _build_keyword(work, config, corpus)
        _test("keyword", _load_keyword(work, config, corpus), corpus)
        if encoder is not None:
            _build_dense(work, config, corpus, encoder)
            _test("dense", _load_dense(work, config, corpus, encoder), corpus)
        manifest = Manifest(
            format=FORMAT,
            tokenizer=TOKENIZER_VERSION,
            corpus_fingerprint=corpus.fingerprint,
            corpus_file=CORPUS_FILE,
            passages=len(corpus),
            settings=index_settings(config),
            encoder_fingerprint=encoder.fingerprint if encoder else None,
            dim=encoder.dim if encoder else None,
            built_with=package_versions(),
            files={},
        )
        write_manifest(work, manifest)
        work.chmod(0o755)
        _move_into_place(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"index ready: {folder}")


def _test(name: str, retriever: Retriever, corpus: Corpus) -> None:
    """Asks a fresh index its canary questions, and closes it, because its folder is about to get another name."""
    try:
        require_sound(name, probe(retriever.search, corpus))
    finally:
        close = getattr(retriever, "close", None)
        if close is not None:
            close()


def _move_into_place(work: Path, folder: Path) -> None:
    old = None
    if is_index_folder(folder):
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.building.", dir=folder.parent))
        folder.rename(old / "old")
    work.rename(folder)
    if old is not None:
        shutil.rmtree(old)


def _build_keyword(folder: Path, config: LibraryConfig, corpus: Corpus) -> None:
    engine = keyword_engine(config)
    engine.build(corpus, folder / (engine.subfolder or "."), config.analysis)


def _load_keyword(folder: Path, config: LibraryConfig, corpus: Corpus) -> Retriever:
    engine = keyword_engine(config)
    return engine.load(corpus, folder / (engine.subfolder or "."), config.analysis)


def _build_dense(folder: Path, config: LibraryConfig, corpus: Corpus, encoder: Encoder) -> None:
    from rpl.retrieval.dense import embed_corpus, load_embeddings

    embed_corpus(corpus, encoder, folder / EMBEDDINGS_FILE, config.embedding_dtype)
    inner = folder / DENSE_FOLDER
    inner.mkdir()
    dense_index(config).build(load_embeddings(folder / EMBEDDINGS_FILE), inner)
    if not any(inner.iterdir()):
        inner.rmdir()


def _load_dense(folder: Path, config: LibraryConfig, corpus: Corpus, encoder: Encoder) -> Retriever:
    from rpl.retrieval.dense import DenseRetriever, load_embeddings

    index = dense_index(config).load(load_embeddings(folder / EMBEDDINGS_FILE), folder / DENSE_FOLDER)
    return DenseRetriever(corpus, encoder, index)


def _check_encoder(encoder: Encoder, manifest: Manifest, folder: Path) -> None:
    if encoder.fingerprint == manifest.encoder_fingerprint:
        return
    built = manifest.settings.get("encoder")
    if built != encoder.name:
        raise ConfigError(f"library.encoder is {encoder.name!r} but the index {folder} was built with {built!r}")
    raise DataError(f"{folder}: encoder {built!r} or its passage prefix has changed since it was built; {REBUILD}")


def _stale(folder: Path) -> str:
    return (
        f"{folder}: this index was built from another corpus, or the corpus has changed since; "
        "delete the folder to build it again, or set library.index_dir to another one"
    )


def _silent(_: str) -> None:
    return
