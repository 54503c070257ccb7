"""A connection to Milvus, and collections of vectors that are made whole or not at all.

Without a `uri` the collection lives in a file of the index folder (Milvus Lite, embedded in this process, which one
process at a time can open). With one it lives on that server or cluster, and the index folder only names it: a folder
that was copied to other machines works there too.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rpl.core.distribution import install_line
from rpl.core.errors import ConfigError, DataError, MissingDependencyError, RetrieverError
from rpl.core.files import write_json
from rpl.retrieval.corpus.corpus import REBUILD

NAME_FILE = "milvus.json"
LIVE_FOLDER = "milvus.db"
"""The files of Milvus Lite. They change while they are read, so no manifest may list them."""

INSTALL = install_line("milvus")

_PLACE, _VECTOR = "place", "vector"

_files: Counter[str] = Counter()
"""How many clients of this process have each file open; they share one embedded server."""
_files_lock = threading.Lock()


@dataclass(frozen=True)
class MilvusSettings:
    """Where the collection lives and how it is indexed.

    Raises:
        ConfigError: The time limit is not positive.
    """

    search_only: ClassVar[frozenset[str]] = frozenset({"token", "search_params", "timeout_s"})

    uri: str | None = None
    """Address of a server (`http://host:19530`), or `$NAME` to take it from the environment; `None` keeps a file in the
    index folder."""
    token: str = ""
    """`user:password` or an API key, better `$NAME`; empty where the server asks for none."""
    index_type: str = "AUTOINDEX"
    """Milvus' name of the index."""
    index_params: dict[str, Any] = field(default_factory=dict)
    """Parameters of building it, by Milvus' names."""
    search_params: dict[str, Any] = field(default_factory=dict)
    """Parameters of searching it, by Milvus' names."""
    timeout_s: float = 60.0
    """Longest wait for one call, in seconds."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ConfigError(f"library: timeout_s of milvus must be above 0, got {self.timeout_s}")


class Collection:
    """An open collection of one vector a passage. Safe to call from several threads.

    Args:
        settings: Where it lives.
        folder: Where `build` wrote.
        rows: How many passages it must hold.

    Raises:
        DataError: It holds another number of passages, or the folder names none.
        MissingDependencyError: pymilvus is not installed.
        RetrieverError: Milvus cannot be reached or does not have the collection.
    """

    def __init__(self, settings: MilvusSettings, folder: Path, rows: int) -> None:
        self._settings = settings
        self._folder = folder
        self._lock = threading.Lock()
        try:
            self._name = str(json.loads((folder / NAME_FILE).read_text(encoding="utf-8"))["collection"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder / NAME_FILE}: cannot be read ({error}); {REBUILD}") from error
        self._client = _connect(settings, folder)
        try:
            found = _call("load", lambda: _load(self._client, self._name, settings.timeout_s))
            if found != rows:
                raise DataError(f"{folder}: the Milvus collection holds {found} passages, the corpus {rows}; {REBUILD}")
        except BaseException:
            self.close()
            raise

    def search(self, vectors: Sequence[Any], k: int) -> list[list[tuple[float, int]]]:
        """Returns (inner product, place in corpus order) of the nearest rows of each vector, best first.

        Raises:
            RetrieverError: Milvus failed or did not answer in time.
        """
        with self._lock:
            found = _call(
                "search",
                lambda: self._client.search(
                    self._name,
                    data=list(vectors),
                    anns_field=_VECTOR,
                    limit=k,
                    search_params={"metric_type": "IP", "params": self._settings.search_params},
                    output_fields=[_PLACE],
                    timeout=self._settings.timeout_s,
                ),
            )
        if len(found) != len(vectors):
            raise RetrieverError(f"Milvus gave {len(found)} answers to {len(vectors)} queries")
        return [[(float(hit["distance"]), int(hit[_PLACE])) for hit in hits] for hits in found]

    def close(self) -> None:
        """Closes the connection, and the file if nobody else here has it open."""
        _disconnect(self._client, self._settings, self._folder)


def build_collection(
    settings: MilvusSettings,
    folder: Path,
    dim: int,
    batches: Iterable[tuple[int, Sequence[Any]]],
) -> None:
    """Makes a collection; one that is not finished is dropped again.

    Args:
        settings: Where to make it and how to index it.
        folder: Gets the file that names it, and the collection itself where `settings.uri` is `None`.
        dim: Length of a vector.
        batches: Place of the first row, and the rows.

    Raises:
        MissingDependencyError: pymilvus is not installed.
        RetrieverError: Milvus cannot be reached, or refuses.
    """
    name = f"rpl_{uuid.uuid4().hex}"
    client = _connect(settings, folder)
    done = False
    try:
        _call("create", lambda: _create(client, name, settings, dim))
        for start, rows in batches:
            records = [{_PLACE: start + i, _VECTOR: row} for i, row in enumerate(rows)]
            _call("insert", partial(client.insert, name, records, timeout=settings.timeout_s))
        _call("flush", lambda: client.flush(name, timeout=settings.timeout_s))
        done = True
    finally:
        if not done and client.has_collection(name):
            client.drop_collection(name)
        _disconnect(client, settings, folder)
    write_json(folder / NAME_FILE, {"collection": name})


def _create(client: Any, name: str, settings: MilvusSettings, dim: int) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field(_PLACE, DataType.INT64, is_primary=True)
    schema.add_field(_VECTOR, DataType.FLOAT_VECTOR, dim=dim)
    index = client.prepare_index_params()
    index.add_index(_VECTOR, index_type=settings.index_type, metric_type="IP", params=dict(settings.index_params))
    client.create_collection(
        name, schema=schema, index_params=index, consistency_level="Strong", timeout=settings.timeout_s
    )


def _load(client: Any, name: str, timeout: float) -> int:
    client.load_collection(name, timeout=timeout)
    counted: Sequence[Mapping[str, Any]] = client.query(name, filter="", output_fields=["count(*)"], timeout=timeout)
    return int(counted[0]["count(*)"])


def _connect(settings: MilvusSettings, folder: Path) -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise MissingDependencyError(f"library: milvus needs pymilvus: {INSTALL}") from error
    uri = from_environment("uri", settings.uri) if settings.uri else str(folder / LIVE_FOLDER)
    if settings.uri is None:
        try:
            import milvus_lite  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                f"library: milvus without a uri needs milvus-lite: {INSTALL}, or give the uri of a server"
            ) from error
    connect = partial(MilvusClient, uri, token=from_environment("token", settings.token), timeout=settings.timeout_s)
    if settings.uri is not None:
        return _call(f"connect to {uri}", connect)
    with _files_lock:
        client = _call(f"open {uri} (one process at a time can; more need a server's uri)", connect)
        _files[uri] += 1
    return client


def _disconnect(client: Any, settings: MilvusSettings, folder: Path) -> None:
    client.close()
    if settings.uri is not None:
        return
    uri = str(folder / LIVE_FOLDER)
    with _files_lock:
        _files[uri] -= 1
        if _files[uri]:
            return
        # Otherwise the file stays open, and locked, until the process ends: also after its folder got another name.
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(uri)


def from_environment(key: str, value: str) -> str:
    """Returns a setting, or the environment variable that it names as `$NAME`.

    Raises:
        ConfigError: That variable is not set.
    """
    if not value.startswith("$"):
        return value
    found = os.environ.get(value[1:])
    if found is None:
        raise ConfigError(f"library: {key} of milvus is {value} but that variable is not set")
    return found


def _call(what: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except ConfigError:
        raise
    except Exception as error:  # pymilvus and gRPC raise classes of their own, which differ between versions
        raise RetrieverError(f"Milvus failed to {what}: {type(error).__name__}: {error}") from error
