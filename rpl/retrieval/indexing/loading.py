"""Opening an index folder: its manifest against its files and the settings, its engines, and a self-test of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rpl.core.errors import ConfigError, DataError, MissingDependencyError
from rpl.core.hub import lasting_name
from rpl.retrieval.base import Retriever
from rpl.retrieval.canary import canary_sample, probe, require_sound
from rpl.retrieval.corpus.corpus import REBUILD, Corpus, contents
from rpl.retrieval.corpus.store import open_store
from rpl.retrieval.dense.encoders import HASH_ENCODER, Encoder, HashEncoder, SentenceEncoder, resolve_encoder
from rpl.retrieval.dense.search import DenseRetriever, load_embeddings
from rpl.retrieval.engines import dense_index, keyword_engine
from rpl.retrieval.indexing.manifest import Manifest, read_manifest, reconcile
from rpl.retrieval.library_config import LibraryConfig
from rpl.retrieval.links.links import LinkGraph, load_links

CORPUS_FOLDER = "corpus"
LINKS_FOLDER = "links"
EMBEDDINGS_FILE = "embeddings.npy"
DENSE_FOLDER = "dense"


@dataclass(frozen=True)
class LoadedIndex:
    """An index folder, open and tested."""

    config: LibraryConfig
    """The settings it was opened with: those asked for, with defaults replaced by what the index was built with."""
    corpus: Corpus
    bm25: Retriever
    dense: Retriever | None
    encoder: Encoder | None
    links: LinkGraph


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


def load_index(
    folder: str | Path,
    config: LibraryConfig,
    fingerprint: str | None = None,
    encoder: Encoder | None = None,
) -> LoadedIndex:
    """Opens an index folder and tests it. The corpus, the keyword index and the links are mapped, not read.

    Args:
        folder: Made by `build_index`.
        config: How to open it; see `reconcile` for settings that the index decides.
        fingerprint: Of the corpus that must have been indexed, where there is one to compare with.
        encoder: Where it has been loaded already.

    Raises:
        DataError: The index is damaged, or stale: made from another corpus or by another encoder.
        ConfigError: A setting disagrees with the index.
        RetrieverError: The index does not find its own passages.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    asked, config = config, reconcile(config, manifest, folder)
    if fingerprint is not None and fingerprint != manifest.corpus_fingerprint:
        raise stale(folder)
    corpus = open_store(folder / CORPUS_FOLDER)
    if corpus.fingerprint != manifest.corpus_fingerprint:
        raise DataError(f"{folder}: its corpus is not the one that was indexed; {REBUILD}")
    links = load_links(corpus, folder / LINKS_FOLDER)
    bm25 = load_keyword(folder, config, corpus)
    require_sound("keyword", probe(bm25.search, corpus))
    if not config.dense:
        return LoadedIndex(config, corpus, bm25, None, encoder, links)
    encoder = encoder or _own_encoder(asked, config, folder)
    _check_encoder(encoder, manifest, folder, config)
    dense = load_dense(folder, config, corpus, encoder)
    require_sound("dense", probe(dense.search, corpus))
    return LoadedIndex(config, corpus, bm25, dense, encoder, links)


def load_keyword(folder: Path, config: LibraryConfig, corpus: Corpus) -> Retriever:
    """Opens the keyword index of a folder, which need not be finished otherwise."""
    engine = keyword_engine(config)
    return engine.load(corpus, folder / (engine.subfolder or "."), config.analysis)


def load_dense(folder: Path, config: LibraryConfig, corpus: Corpus, encoder: Encoder) -> Retriever:
    """Opens the dense index of a folder, which need not be finished otherwise."""
    index = dense_index(config).load(load_embeddings(folder / EMBEDDINGS_FILE), folder / DENSE_FOLDER)
    return DenseRetriever(corpus, encoder, index)


def stale(folder: Path) -> DataError:
    """Returns the error for an index of another corpus."""
    return DataError(
        f"{folder}: this index was built from another corpus, or the corpus has changed since; "
        "delete the folder to build it again, or set library.index_dir to another one"
    )


def _own_encoder(asked: LibraryConfig, config: LibraryConfig, folder: Path) -> Encoder:
    try:
        return load_encoder(config)
    except (ConfigError, MissingDependencyError) as error:
        if config.encoder == asked.encoder:
            raise
        where = ", a path relative to where it was built" if config.encoder.startswith(".") else ""
        raise type(error)(
            f"the index {folder} was built with encoder {config.encoder!r}{where}: {error}; if it lies elsewhere, set "
            "library.encoder to its folder"
        ) from error


def _check_encoder(encoder: Encoder, manifest: Manifest, folder: Path, config: LibraryConfig) -> None:
    """Refuses an encoder whose vectors would not fit those of the index.

    A query prefix that the settings name is taken as it is: they may ask for another than the index was built for.
    """
    then, now = manifest.passage_prefix, encoder.prefixes["passage"]
    if then is not None and then != now:
        raise DataError(
            f"{folder}: encoder {encoder.name!r} now puts {now!r} before passages, and put {then!r} when the index was "
            f"built; set library.passage_prefix to {then!r} where the vectors are right, or {REBUILD}"
        )
    if encoder.fingerprint != manifest.encoder_fingerprint:
        built = manifest.settings.get("encoder")
        if built not in (encoder.name, lasting_name(encoder.name)):
            raise ConfigError(f"library.encoder is {encoder.name!r} but the index {folder} was built with {built!r}")
        raise DataError(
            f"{folder}: the weights, pooling or passage prefix of encoder {built!r} have changed since the index was "
            f"built; {REBUILD}"
        )
    files = manifest.encoder_files or {}
    changed = [name for name, value in encoder.contents.items() if files.get(name, value) != value]
    if changed:
        raise DataError(
            f"{folder}: {', '.join(changed)} of encoder {encoder.name!r} changed since the index was built; {REBUILD}"
        )
    then, now = manifest.query_prefix, encoder.prefixes["query"]
    if then is not None and then != now and config.query_prefix is None:
        raise DataError(
            f"{folder}: encoder {encoder.name!r} now puts {now!r} before queries, and put {then!r} when the index was "
            f"built; set library.query_prefix to {then!r} to search as before, or to {now!r} if that is meant"
        )


def embedding_agreement(folder: Path, corpus: Corpus, encoder: Encoder) -> tuple[float, float]:
    """Encodes canary passages again and compares them with their rows in the index.

    Args:
        folder: An index folder with embeddings.
        corpus: Its passages.
        encoder: The one that it was built with.

    Returns:
        The median and the lowest cosine.
    """
    rows, canaries = load_embeddings(folder / EMBEDDINGS_FILE), canary_sample(corpus)
    stored = rows[[corpus.position(passage.id) for passage in canaries]].astype(np.float32)
    fresh = encoder.encode([contents(passage.title, passage.text) for passage in canaries], "passage")
    cosines = np.einsum("ij,ij->i", fresh, stored)
    return float(np.median(cosines)), float(cosines.min())
