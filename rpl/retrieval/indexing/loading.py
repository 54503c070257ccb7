"""Opening an index folder: its manifest against its files and the settings, its engines, and a self-test of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rpl.core.errors import ConfigError, DataError
from rpl.retrieval.base import Retriever
from rpl.retrieval.canary import probe, require_sound
from rpl.retrieval.config import LibraryConfig
from rpl.retrieval.corpus.corpus import REBUILD, Corpus
from rpl.retrieval.corpus.store import open_store
from rpl.retrieval.dense.encoders import HASH_ENCODER, Encoder, HashEncoder, SentenceEncoder, resolve_encoder
from rpl.retrieval.engines import dense_index, keyword_engine
from rpl.retrieval.indexing.manifest import Manifest, read_manifest, reconcile
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
    config = reconcile(config, manifest, folder)
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
    encoder = encoder or load_encoder(config)
    _check_encoder(encoder, manifest, folder)
    dense = load_dense(folder, config, corpus, encoder)
    require_sound("dense", probe(dense.search, corpus))
    return LoadedIndex(config, corpus, bm25, dense, encoder, links)


def load_keyword(folder: Path, config: LibraryConfig, corpus: Corpus) -> Retriever:
    """Opens the keyword index of a folder, which need not be finished otherwise."""
    engine = keyword_engine(config)
    return engine.load(corpus, folder / (engine.subfolder or "."), config.analysis)


def load_dense(folder: Path, config: LibraryConfig, corpus: Corpus, encoder: Encoder) -> Retriever:
    """Opens the dense index of a folder, which need not be finished otherwise."""
    from rpl.retrieval.dense.search import DenseRetriever, load_embeddings

    index = dense_index(config).load(load_embeddings(folder / EMBEDDINGS_FILE), folder / DENSE_FOLDER)
    return DenseRetriever(corpus, encoder, index)


def stale(folder: Path) -> DataError:
    """Returns the error for an index of another corpus."""
    return DataError(
        f"{folder}: this index was built from another corpus, or the corpus has changed since; "
        "delete the folder to build it again, or set library.index_dir to another one"
    )


def _check_encoder(encoder: Encoder, manifest: Manifest, folder: Path) -> None:
    if encoder.fingerprint == manifest.encoder_fingerprint:
        return
    built = manifest.settings.get("encoder")
    if built != encoder.name:
        raise ConfigError(f"library.encoder is {encoder.name!r} but the index {folder} was built with {built!r}")
    raise DataError(f"{folder}: encoder {built!r} or its passage prefix has changed since it was built; {REBUILD}")
