"""The manifest of an index folder: what was indexed, how, with which packages, and which files belong to it."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rpl.core.distribution import DISTRIBUTION
from rpl.core.errors import ConfigError, DataError
from rpl.core.files import write_json
from rpl.core.hub import lasting_name
from rpl.core.progress import progress_bar
from rpl.core.units import count_text, duration_text, format_table, size_text
from rpl.retrieval.corpus.corpus import REBUILD
from rpl.retrieval.engines import (
    DENSE_INDEXES,
    KEYWORD_ENGINES,
    DenseIndex,
    KeywordEngine,
    current_path,
    dense_index,
    describe,
    keyword_engine,
    make,
)
from rpl.retrieval.indexing.parts import HASHED_AT_LOAD, FinishedPart, belongs, file_hash
from rpl.retrieval.keyword.tokens import TOKENIZER_VERSION
from rpl.retrieval.library_config import LibraryConfig

MANIFEST = "manifest.json"
FORMAT = 2
"""Goes up when an older index folder can no longer be read."""

_KEYWORD = ("bm25", "bm25_k1", "bm25_b", "stemmer", "stop_words")
_DENSE = ("encoder", "passage_prefix", "embedding_dtype", "dense_index", "encoder_pooling", "encoder_max_tokens")
_ADDED = {"dense_index": "flat", "encoder_pooling": None, "encoder_max_tokens": None}
"""Settings that older manifests do not name, with what they were; left out where they still are."""
_PACKAGES = (
    DISTRIBUTION,
    "PyStemmer",
    "numpy",
    "pyarrow",
    "marisa-trie",
    "sentence-transformers",
)
"""What takes part in building any index; an engine adds its own package."""


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says."""

    format: int
    tokenizer: int
    corpus_fingerprint: str
    passages: int
    settings: dict[str, Any]
    """The settings that decided what is in the index, by their names in `LibraryConfig`."""
    encoder_fingerprint: str | None
    """`None` where the index holds no embeddings."""
    dim: int | None
    built_with: dict[str, str]
    """Versions of the packages that built it."""
    parts: dict[str, dict[str, Any]]
    """Key, path and seconds of each part, by its name; see `rpl.retrieval.indexing.parts`."""
    files: dict[str, dict[str, Any]]
    """Size and SHA-256 of each file, by its path in the folder."""
    query_prefix: str | None = None
    """What the encoder put before queries; `None` without embeddings, and in folders of earlier versions."""
    passage_prefix: str | None = None
    """What it put before passages; `None` as for `query_prefix`."""
    encoder_files: dict[str, str] | None = None
    """See `Encoder.contents`; `None` as for `query_prefix`."""


def index_settings(config: LibraryConfig) -> dict[str, Any]:
    """Returns the settings that decide what is in an index, as JSON values."""
    values = {name: _value(config, name) for name in _KEYWORD + (_DENSE if config.dense else ())}
    return {name: value for name, value in values.items() if name not in _ADDED or value != _ADDED[name]}


def reconcile(config: LibraryConfig, manifest: Manifest, folder: Path) -> LibraryConfig:
    """Returns the settings to open an existing index with.

    A setting that still has its default follows the index; one that was changed must agree with it. The encoder is
    compared by its files when it is loaded, so it may have moved.

    Raises:
        ConfigError: A setting disagrees with the index.
    """
    if config.dense and manifest.encoder_fingerprint is None:
        raise ConfigError(
            f"library.dense is true but the index {folder} holds no embeddings; build it with dense: true"
        )
    default = LibraryConfig()
    adopted: dict[str, Any] = {}
    for name, built in {**_ADDED, **manifest.settings}.items():
        wanted = _value(config, name)
        if wanted == built or (name == "encoder" and config.encoder != default.encoder):
            continue
        if name in _DENSE and not config.dense:
            continue
        if wanted != _value(default, name):
            raise ConfigError(
                f"library.{name} is {wanted!r} but the index {folder} was built with {built!r}; "
                "change the setting or build another index"
            )
        try:
            adopted[name] = _restored(name, built)
        except ConfigError as error:
            raise ConfigError(f"the index {folder} was built with {name} {built!r}: {error}; {REBUILD}") from error
    return replace(config, **adopted)


def _value(config: LibraryConfig, name: str) -> Any:
    if name == "bm25":
        return describe(keyword_engine(config), built=True)
    if name == "encoder":
        return lasting_name(config.encoder)
    return describe(dense_index(config), built=True) if name == "dense_index" else getattr(config, name)


def _restored(name: str, built: Any) -> Any:
    if name == "bm25":
        return make(name, built, KeywordEngine, KEYWORD_ENGINES)  # type: ignore[type-abstract]
    return make(name, built, DenseIndex, DENSE_INDEXES) if name == "dense_index" else built  # type: ignore[type-abstract]


def write_manifest(folder: Path, manifest: Manifest, parts: Mapping[str, FinishedPart]) -> None:
    """Writes `manifest.json`, with the parts that are in the folder."""
    described = {n: {"key": p.key, "path": p.path, "seconds": round(p.seconds, 3)} for n, p in parts.items()}
    files = {name: entry for part in parts.values() for name, entry in part.files.items()}
    write_json(folder / MANIFEST, asdict(replace(manifest, parts=described, files=files)))


def read_manifest(folder: Path) -> Manifest:
    """Reads `manifest.json` and checks that every file it names is there and has its size, and hashes small ones.

    Raises:
        DataError: The folder is no index, of another format, made by another tokeniser, or damaged.
    """
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{folder}: not an index folder (no {MANIFEST}); make one with `rpl index`") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {REBUILD}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else None
        raise DataError(f"{path}: index format {found!r}, this version reads {FORMAT}; {REBUILD}")
    try:
        manifest = Manifest(**data)
    except TypeError as error:
        raise DataError(f"{path}: damaged ({error}); {REBUILD}") from error
    for value in manifest.settings.values():
        if isinstance(value, dict) and "class_path" in value:
            value["class_path"] = current_path(str(value["class_path"]))
    if manifest.tokenizer != TOKENIZER_VERSION:
        raise DataError(f"{path}: made by tokeniser {manifest.tokenizer}, now {TOKENIZER_VERSION}; {REBUILD}")
    for name, expected in manifest.files.items():
        _check_file(folder / name, expected, hashed=expected["bytes"] <= HASHED_AT_LOAD)
    return manifest


def check_all_files(folder: Path) -> int:
    """Hashes every file of an index, whatever its size, and returns how many bytes they have.

    Raises:
        DataError: See `read_manifest`.
    """
    files = read_manifest(folder).files
    total = sum(entry["bytes"] for entry in files.values())
    with progress_bar(total, "checking", "B") as bar:
        for name, expected in files.items():
            _check_file(folder / name, expected, hashed=True)
            bar.update(expected["bytes"])
    return total


def package_versions(*engines: str | None) -> dict[str, str]:
    """Returns the versions of the installed packages that take part in building an index.

    Args:
        engines: The packages of its engines.
    """
    versions = {}
    for name in filter(None, (*_PACKAGES, *engines)):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _check_file(path: Path, expected: dict[str, Any], hashed: bool) -> None:
    if not path.is_file():
        raise DataError(f"{path}: missing from the index; {REBUILD}")
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise DataError(f"{path}: {size} bytes instead of {expected['bytes']}; {REBUILD}")
    if hashed and file_hash(path) != expected["sha256"]:
        raise DataError(f"{path}: its content has changed since the index was built; {REBUILD}")


def peek_manifest(folder: Path) -> dict[str, Any] | None:
    """Returns what `manifest.json` says, unchecked; `None` where there is none of this format."""
    try:
        data = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(data, dict) and data.get("format") == FORMAT and isinstance(data.get("parts"), dict)
    return data if whole else None


def describe_manifest(manifest: Manifest) -> str:
    """Returns what an index holds as lines of text: its parts, settings and versions."""
    rows = [("part", "size", "files", "built in")]
    for name, part in manifest.parts.items():
        sizes = [entry["bytes"] for file, entry in manifest.files.items() if belongs(file, part["path"])]
        rows.append((name, size_text(sum(sizes)), str(len(sizes)), duration_text(part["seconds"])))
    total = sum(entry["bytes"] for entry in manifest.files.values())
    rows.append(("in all", size_text(total), str(len(manifest.files)), ""))
    vectors = f", embeddings of length {manifest.dim}" if manifest.dim is not None else ""
    settings = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in manifest.settings.items())
    before = (("queries", manifest.query_prefix), ("passages", manifest.passage_prefix))
    settings += "".join(f"  put before {name}: {json.dumps(text)}\n" for name, text in before if text is not None)
    versions = ", ".join(f"{name} {version}" for name, version in manifest.built_with.items())
    return (
        f"{count_text(manifest.passages, 'passage')}, corpus {manifest.corpus_fingerprint}{vectors}\n\n"
        f"{format_table(rows)}\nsettings\n{settings}built with {versions}\n"
    )
