"""Which parts an index has, what decides each of them, and how each is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rpl.core.errors import DataError
from rpl.core.files import digest
from rpl.core.records import Passage
from rpl.retrieval.canary import canary_query, canary_sample, probe_passages, require_sound
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.corpus.store import STORE_VERSION
from rpl.retrieval.dense.encoders import Encoder
from rpl.retrieval.dense.search import embed_corpus, load_embeddings
from rpl.retrieval.engines import dense_index, describe, keyword_engine
from rpl.retrieval.indexing.loading import CORPUS_FOLDER, DENSE_FOLDER, EMBEDDINGS_FILE, LINKS_FOLDER
from rpl.retrieval.indexing.manifest import index_settings, package_versions
from rpl.retrieval.indexing.parts import Part
from rpl.retrieval.keyword.tokens import TOKENIZER_VERSION
from rpl.retrieval.library_config import LibraryConfig
from rpl.retrieval.links.links import LINKS_VERSION, build_links

STATE_FILE = f".{EMBEDDINGS_FILE}.shards"
"""Which shards of the embeddings are done, in the folder of an unfinished index."""


@dataclass(frozen=True)
class GivenEmbeddings:
    """Embeddings that were made elsewhere."""

    source: str
    """What decides them, for instance the hash of the file that they come from."""
    write: Callable[[Path], None]
    """Writes them to a `.npy` file: unit vectors of shape (passages, dim), in corpus order, of
    `library.embedding_dtype`. What it had written when it was killed is there when it is called again."""
    frees: int = 0
    """Bytes on the same disk that it gives back meanwhile."""


@dataclass(frozen=True)
class Plan:
    """The parts of an index.

    Args:
        config: What to index and how.
        encoder: `None` where there are no embeddings.
        fingerprint: Of the corpus.
        embeddings: Where they come from instead of the encoder.
    """

    config: LibraryConfig
    encoder: Encoder | None
    fingerprint: str
    embeddings: GivenEmbeddings | None = None

    @property
    def keys(self) -> dict[str, str]:
        """The key of each part, by its name, in the order in which they are made."""
        engine, version = keyword_engine(self.config), _minor_version
        settings = json.dumps(index_settings(replace(self.config, dense=False)), sort_keys=True)
        keys = {
            "corpus": digest("corpus", str(STORE_VERSION), self.fingerprint),
            "keyword": digest("keyword", self.fingerprint, str(TOKENIZER_VERSION), settings, version(engine.package)),
            "links": digest("links", self.fingerprint, str(LINKS_VERSION), version("marisa-trie")),
        }
        if self.encoder is not None:
            given = self.embeddings.source if self.embeddings is not None else ""
            dtype = self.config.embedding_dtype
            made_by = digest(self.encoder.fingerprint, *sorted(self.encoder.contents.values()))
            keys["embeddings"] = digest("embeddings", self.fingerprint, made_by, dtype, given)
            index = dense_index(self.config)
            described = json.dumps(describe(index, built=True), sort_keys=True)
            keys["dense"] = digest("dense", keys["embeddings"], described, version(index.package))
        return keys

    @property
    def key(self) -> str:
        """Hash of all that decides what is in the index."""
        return digest(*self.keys.values())

    def parts(self, store: Callable[[Path], None], corpus: Corpus | None = None) -> dict[str, Part]:
        """Returns the parts by their names, in the order in which they are made.

        Args:
            store: Makes the part `corpus`.
            corpus: What is in it; the other parts can be made only where it is given.
        """

        def passages() -> Corpus:
            assert corpus is not None, "the corpus comes before the other parts"
            return corpus

        def make_links(path: Path) -> None:
            path.mkdir()
            build_links(passages(), path)

        engine = keyword_engine(self.config)
        makers: dict[str, tuple[str, Callable[[Path], None]]] = {
            "corpus": (CORPUS_FOLDER, store),
            "keyword": (
                engine.subfolder or "keyword",
                lambda path: engine.build(passages(), path, self.config.analysis),
            ),
            "links": (LINKS_FOLDER, make_links),
            "embeddings": (EMBEDDINGS_FILE, lambda path: self._make_embeddings(path, passages())),
            "dense": (DENSE_FOLDER, self._make_dense),
        }
        return {name: Part(name, key, *makers[name], name == "embeddings") for name, key in self.keys.items()}

    def _make_embeddings(self, path: Path, corpus: Corpus) -> None:
        assert self.encoder is not None
        if self.embeddings is None:
            embed_corpus(corpus, self.encoder, path, self.config.embedding_dtype, path.with_name(STATE_FILE))
            return
        self.embeddings.write(path)
        rows = load_embeddings(path)
        wanted = ((len(corpus), self.encoder.dim), self.config.embedding_dtype)
        if (rows.shape, rows.dtype) != wanted:
            raise DataError(
                f"{path}: the given embeddings are {rows.dtype} of shape {rows.shape}; this corpus and encoder "
                f"{self.encoder.name!r} need {wanted[1]} of shape {wanted[0]}"
            )

    def _make_dense(self, path: Path) -> None:
        path.mkdir()
        dense_index(self.config).build(load_embeddings(path.with_name(EMBEDDINGS_FILE)), path)
        if not any(path.iterdir()):
            path.rmdir()


def require_sound_embeddings(path: Path, corpus: Corpus, encoder: Encoder) -> None:
    """Encodes canary queries and compares them with the rows of their passages only, which needs no index.

    Raises:
        RetrieverError: The rows do not belong to the passages or to the encoder.
    """
    rows, canaries = load_embeddings(path), canary_sample(corpus)
    places = [corpus.position(passage.id) for passage in canaries]
    scores = encoder.encode([canary_query(p) for p in canaries], "query") @ rows[places].astype("float32").T

    def nearest(queries: object, k: int) -> list[list[Passage]]:
        return [[canaries[best]] for best in scores.argmax(axis=1)]

    require_sound("dense", probe_passages(nearest, canaries))


def _minor_version(package: str | None) -> str:
    return ".".join(package_versions(package).get(package or "", "").split(".")[:2])
