"""From a `LibraryConfig` to a `LocalLibrary`: finds the corpus, builds or loads its index, chooses the reranker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rpl.core.errors import ConfigError
from rpl.core.files import cache_dir, digest
from rpl.retrieval.corpus.fingerprints import file_fingerprint
from rpl.retrieval.engines import RerankEngine, dense_index, describe, rerank_engine
from rpl.retrieval.indexing.folder import LoadedIndex, Say, ensure_index, is_index_folder, load_encoder, load_index
from rpl.retrieval.indexing.manifest import FORMAT, index_settings
from rpl.retrieval.indexing.plan import Plan
from rpl.retrieval.library.library import LocalLibrary
from rpl.retrieval.library_config import LibraryConfig
from rpl.retrieval.rerank.rerankers import CrossEncoder, LateInteraction


def open_local(config: LibraryConfig, progress: Say | None = None) -> LocalLibrary:
    """Opens the library of a corpus on this machine; see `rpl.retrieval.library.opening.open_library`."""
    source = resolve_corpus(config.corpus)
    if source.is_dir():
        if config.index_dir is not None:
            raise ConfigError("library.index_dir must be left out where library.corpus is an index folder")
        loaded = load_index(source, config)
    else:
        encoder = load_encoder(config) if config.dense else None
        fingerprint: str | None = None
        if config.index_dir is None:
            fingerprint = file_fingerprint(source)
            folder = cache_dir() / "indexes" / digest(Plan(config, encoder, fingerprint).key, str(FORMAT))
            ensure_index(source, folder, config, encoder, progress)
        else:
            folder = Path(config.index_dir).expanduser()
            if is_index_folder(folder):
                fingerprint = file_fingerprint(source)
            else:
                ensure_index(source, folder, config, encoder, progress)
        loaded = load_index(folder, config, fingerprint, encoder)
    return _assemble(loaded)


def resolve_corpus(name: str) -> Path:
    """Returns the corpus file or index folder that `library.corpus` means.

    Raises:
        ConfigError: It is neither an embedded corpus, nor a corpus file, nor an index folder.
    """
    if name in ("atlas", "atlas-mini"):
        from rpl import atlas

        return atlas.materialise("atlas" if name == "atlas" else "atlas-mini") / "corpus.jsonl"
    path = Path(name).expanduser()
    if path.is_file() or (path.is_dir() and is_index_folder(path)):
        return path
    what = "is a folder without an index" if path.is_dir() else "does not exist"
    raise ConfigError(
        f"library.corpus: {name!r} {what}; give atlas, atlas-mini, a .jsonl or .jsonl.gz file, or a folder made by "
        "`rpl index`"
    )


def _assemble(loaded: LoadedIndex) -> LocalLibrary:
    config, encoder = loaded.config, loaded.encoder
    engine = rerank_engine(config)
    if engine is not None and engine.needs_encoder and encoder is None:
        encoder = load_encoder(config)
    settings = {
        **index_settings(config),
        "encoder_files": encoder.fingerprint if encoder else None,
        "query_prefix": encoder.prefixes["query"] if encoder else None,
        "encoder_precision": config.encoder_precision,
        "dense": config.dense,
        "reranker": _reranker_name(engine),
    }
    if config.dense and describe(dense_index(config)) != index_settings(config).get("dense_index", "flat"):
        settings["dense_search"] = describe(dense_index(config))
    return LocalLibrary(
        loaded.corpus,
        loaded.bm25,
        loaded.dense,
        engine.open(config, encoder) if engine is not None else None,
        links=loaded.links,
        settings=json.dumps(settings, sort_keys=True),
        cache_size=config.cache_size,
    )


def _reranker_name(engine: RerankEngine | None) -> Any:
    """Returns what decides the results of a reranker; the size of its cache does not."""
    if engine is None:
        return "none"
    if isinstance(engine, LateInteraction):
        return "late-interaction"
    return engine.model if isinstance(engine, CrossEncoder) else describe(engine)
