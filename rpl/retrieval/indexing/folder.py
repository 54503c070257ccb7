"""Index folders: built part by part in a work folder beside, tested, renamed into place, and checked at every load.

A folder holds `corpus/`, the keyword index in `bm25/` (or `lucene/`), `links/`, where dense search is on
`embeddings.npy` and what its index needs besides them in `dense/`, and `manifest.json`.

A build that was killed leaves its work folder, and the next build of that index goes on from it. Parts with equal keys
are also taken from the index that is replaced and, in the cache folder, from the other indexes there: whoever changes
one setting pays for the parts that it decides.
"""

from __future__ import annotations

from pathlib import Path

from rpl.core.errors import ConfigError, DataError
from rpl.core.locks import folder_lock
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.corpus.fingerprints import known_fingerprint
from rpl.retrieval.dense.encoders import Encoder
from rpl.retrieval.indexing.building import IndexBuild, Say, donors, part_key, restore, source_fingerprint, work_folder
from rpl.retrieval.indexing.estimate import Estimate, estimate
from rpl.retrieval.indexing.loading import LoadedIndex, load_encoder, load_index, stale
from rpl.retrieval.indexing.manifest import MANIFEST, index_settings, read_manifest
from rpl.retrieval.indexing.plan import GivenEmbeddings, Plan
from rpl.retrieval.indexing.sampling import sample_file
from rpl.retrieval.library_config import LibraryConfig

__all__ = [
    "GivenEmbeddings",
    "LoadedIndex",
    "Say",
    "build_index",
    "ensure_index",
    "is_index_folder",
    "load_encoder",
    "load_index",
    "plan_index",
    "work_folder",
]


def is_index_folder(folder: Path) -> bool:
    """Tells whether there is an index in a folder."""
    return (folder / MANIFEST).is_file()


def build_index(
    corpus_path: str | Path,
    out_dir: str | Path,
    config: LibraryConfig,
    progress: Say | None = None,
    embeddings: GivenEmbeddings | None = None,
) -> Path:
    """Makes an index folder from a corpus file. An index of the same corpus and settings is kept as it is.

    Args:
        corpus_path: `.jsonl` or `.jsonl.gz`.
        out_dir: The folder to make; may hold an older index of the same corpus, which is then replaced.
        config: What to index and how (`corpus` and `index_dir` are not read).
        progress: Receives the estimate and one line a step.
        embeddings: Where they come from instead of the encoder; needs `config.dense`.

    Returns:
        The folder.

    Raises:
        DataError: The corpus is wrong, or the folder holds something else.
        ConfigError: A setting does not fit, or disk or memory is too small.
        RetrieverError: The finished index does not find its own passages.
    """
    encoder = load_encoder(config) if config.dense else None
    ensure_index(Path(corpus_path), Path(out_dir), config, encoder, progress, embeddings)
    return Path(out_dir)


def plan_index(corpus_path: str | Path, out_dir: str | Path, config: LibraryConfig) -> Estimate:
    """Returns what `build_index` would cost, without building anything.

    Raises:
        DataError: The first passage of the corpus is wrong, or the folder holds something else.
        ConfigError: A setting does not fit.
    """
    source, folder = Path(corpus_path), Path(out_dir)
    encoder = load_encoder(config) if config.dense else None
    _holds(folder, None, config, encoder)
    fingerprint = known_fingerprint(source)
    found: set[str] = set()
    if fingerprint is not None:
        keys = Plan(config, encoder, fingerprint).keys
        # Asked without a lock: a build that runs meanwhile may change the answer.
        found = {n for n, key in keys.items() if any(part_key(manifest, n) == key for _, manifest in donors(folder))}
    return estimate(sample_file(source), config, encoder, found)


def ensure_index(
    source: Corpus | Path,
    folder: Path,
    config: LibraryConfig,
    encoder: Encoder | None,
    progress: Say | None = None,
    embeddings: GivenEmbeddings | None = None,
) -> None:
    """Builds an index of a corpus or corpus file unless the folder already holds it; one process at a time.

    See `build_index`.
    """
    if embeddings is not None and encoder is None:
        raise ConfigError("library.dense must be true where embeddings are given")
    say = progress or _silent
    with folder_lock(folder, on_wait=lambda: say(f"waiting for another process that is building {folder}")):
        restore(folder)
        if not _holds(folder, source, config, encoder):
            IndexBuild(source, folder, config, encoder, say, embeddings).run()


def _holds(folder: Path, source: Corpus | Path | None, config: LibraryConfig, encoder: Encoder | None) -> bool:
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
    if source is not None and manifest.corpus_fingerprint != source_fingerprint(source):
        raise stale(folder)
    if manifest.settings != index_settings(config):
        return False
    if encoder is None:
        return manifest.encoder_fingerprint is None
    # What an earlier version did not note down counts as unchanged.
    query = manifest.query_prefix if config.query_prefix is None else None
    return (
        manifest.encoder_fingerprint == encoder.fingerprint
        and manifest.encoder_files in (None, encoder.contents)
        and query in (None, encoder.prefixes["query"])
    )


def _silent(_: str) -> None:
    return
