"""One build of an index: which parts are made, taken from elsewhere or found done, and what a failure leaves."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rpl.core.errors import DataError, RetrieverError
from rpl.core.files import cache_dir
from rpl.core.units import count_text
from rpl.retrieval.base import Retriever
from rpl.retrieval.canary import probe, require_sound
from rpl.retrieval.corpus.budget import PRINTED_TOKENS
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.corpus.fingerprints import Reading, file_fingerprint, known_fingerprint
from rpl.retrieval.corpus.store import open_store, store_corpus_file, store_rows, too_long_passages
from rpl.retrieval.dense.encoders import Encoder
from rpl.retrieval.engines import dense_index, keyword_engine
from rpl.retrieval.indexing.estimate import estimate, require_room
from rpl.retrieval.indexing.loading import CORPUS_FOLDER, EMBEDDINGS_FILE, load_dense, load_keyword
from rpl.retrieval.indexing.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    index_settings,
    package_versions,
    peek_manifest,
    write_manifest,
)
from rpl.retrieval.indexing.parts import FinishedPart, Part, WorkFolder, remove
from rpl.retrieval.indexing.plan import GivenEmbeddings, Plan, require_sound_embeddings
from rpl.retrieval.indexing.sampling import sample_corpus, sample_file
from rpl.retrieval.indexing.shared_encoding import invite
from rpl.retrieval.keyword.tokens import TOKENIZER_VERSION
from rpl.retrieval.library_config import LibraryConfig

Say = Callable[[str], None]


class IndexBuild:
    """One build of an index, by the process that holds the lock of its folder.

    Args:
        source: The corpus, or its file.
        folder: The index to make, which may hold an older one.
        config: What to index and how.
        encoder: `None` where there will be no embeddings.
        say: Receives one line a step.
        embeddings: Where they come from instead of the encoder.
    """

    def __init__(
        self,
        source: Corpus | Path,
        folder: Path,
        config: LibraryConfig,
        encoder: Encoder | None,
        say: Say,
        embeddings: GivenEmbeddings | None,
    ) -> None:
        self.source, self.folder, self.config, self.encoder, self.say = source, folder, config, encoder, say
        self.embeddings = embeddings
        self.path = work_folder(folder)
        self.old = _replaced(folder)
        self.new = not self.path.exists()
        self.finished: dict[str, FinishedPart] = {}

    def run(self) -> None:
        """Makes the index; see `rpl.retrieval.indexing.folder.build_index`."""
        remove(self.old)
        self.work = WorkFolder(self.path)
        try:
            self._make_parts()
            self._publish()
        except BaseException as error:
            if isinstance(error, DataError) or (self.new and not self.finished):
                shutil.rmtree(self.path)
            else:
                self.say(f"not finished; what is done is kept in {self.path}, and the same command goes on from it")
            raise

    def _make_parts(self) -> None:
        # A folder that nobody began has nothing to compare the corpus with: it is read once and not twice.
        fingerprint = source_fingerprint(self.source, read=not self.new or (self.folder / MANIFEST).is_file())
        self._announce(fingerprint)
        fingerprint = self._corpus(fingerprint)
        corpus = open_store(self.path / CORPUS_FOLDER)
        parts = self._plan(fingerprint).parts(self._store, corpus)
        self._invite(parts.get("embeddings"), corpus)
        for name in list(parts)[1:]:
            self._ensure(parts[name], lambda name=name: self._test(name, corpus))  # type: ignore[misc]

    def _plan(self, fingerprint: str) -> Plan:
        return Plan(self.config, self.encoder, fingerprint, self.embeddings)

    def _invite(self, part: Part | None, corpus: Corpus) -> None:
        """Lets other processes encode, from now on and not only when it is the turn of the embeddings."""
        if part is None or self.embeddings is not None or self._known(part):
            return
        assert self.encoder is not None
        self.work.begin(part)
        invite(self.path, corpus, self.config, self.encoder)

    def _announce(self, fingerprint: str | None) -> None:
        """Says what the index will cost, and stops if there is no room for it."""
        found: set[str] = set()
        if fingerprint is not None:
            parts = self._plan(fingerprint).parts(self._store)
            found = {name for name, part in parts.items() if self._known(part)}
        sample = sample_file(self.source) if isinstance(self.source, Path) else sample_corpus(self.source)
        given = self.embeddings
        cost = estimate(sample, self.config, self.encoder, found, given is not None, given.frees if given else 0)
        self.say(f"building index {self.folder}: {cost}")
        require_room(cost, self.folder.parent)

    def _corpus(self, fingerprint: str | None) -> str:
        """Makes the part `corpus` and returns the fingerprint of what is in it."""
        if fingerprint is not None:
            self._ensure(self._plan(fingerprint).parts(self._store)["corpus"])
            if open_store(self.path / CORPUS_FOLDER).fingerprint != fingerprint:
                raise DataError(f"{self.source}: has changed while it was read; start again when it is whole")
            return fingerprint
        started = time.perf_counter()
        self._store(self.work.begin(self._plan("").parts(self._store)["corpus"]))
        fingerprint = open_store(self.path / CORPUS_FOLDER).fingerprint
        part = self._plan(fingerprint).parts(self._store)["corpus"]
        self.finished[part.name] = self.work.finish(part, time.perf_counter() - started)
        return fingerprint

    def _store(self, path: Path) -> None:
        path.mkdir()
        if isinstance(self.source, Corpus):
            store_rows(((p.id, p.title, p.text) for p in self.source), path, len(self.source))
        else:
            reading = Reading(self.source)
            reading.remember(store_corpus_file(self.source, path))

    def _ensure(self, part: Part, test: Callable[[], None] | None = None) -> None:
        """Makes one part, unless it is here or can be taken from another index."""
        done = self.work.finished(part)
        if done is not None:
            self.say(f"{part.name}: done before")
        else:
            done = self._taken(part)
        if done is None:
            started = time.perf_counter()
            part.make(self.work.begin(part))
            with self._dropped_if_unsound(part):
                if test is not None:
                    test()
            done = self.work.finish(part, time.perf_counter() - started)
        self.finished[part.name] = done

    @contextmanager
    def _dropped_if_unsound(self, part: Part) -> Iterator[None]:
        try:
            yield
        except (RetrieverError, DataError):
            self.work.drop(part)
            raise

    def _taken(self, part: Part) -> FinishedPart | None:
        for donor, manifest in donors(self.folder):
            done = self.work.reuse(part, donor, manifest)
            if done is not None:
                self.say(f"{part.name}: taken from {donor}")
                return done
        return None

    def _known(self, part: Part) -> bool:
        """Tells whether a part need not be made."""
        taken = any(part_key(manifest, part.name) == part.key for _, manifest in donors(self.folder))
        return taken or self.work.finished(part) is not None

    def _test(self, name: str, corpus: Corpus) -> None:
        """Asks fresh engines their canary questions, and closes them, because their folder gets another name."""
        retriever: Retriever | None = None
        if name == "keyword":
            retriever = load_keyword(self.path, self.config, corpus)
        elif name == "embeddings" and self.encoder is not None:
            require_sound_embeddings(self.path / EMBEDDINGS_FILE, corpus, self.encoder)
        elif name == "dense" and self.encoder is not None:
            retriever = load_dense(self.path, self.config, corpus, self.encoder)
        if retriever is None:
            return
        try:
            require_sound(name, probe(retriever.search, corpus))
        finally:
            close = getattr(retriever, "close", None)
            if close is not None:
                close()

    def _publish(self) -> None:
        """Writes the manifest and gives the work folder the index's name."""
        corpus = open_store(self.path / CORPUS_FOLDER)
        manifest = Manifest(
            format=FORMAT,
            tokenizer=TOKENIZER_VERSION,
            corpus_fingerprint=corpus.fingerprint,
            passages=len(corpus),
            settings=index_settings(self.config),
            encoder_fingerprint=self.encoder.fingerprint if self.encoder else None,
            dim=self.encoder.dim if self.encoder else None,
            built_with=package_versions(
                keyword_engine(self.config).package, dense_index(self.config).package if self.encoder else None
            ),
            parts={},
            files={},
            query_prefix=self.encoder.prefixes["query"] if self.encoder else None,
            passage_prefix=self.encoder.prefixes["passage"] if self.encoder else None,
            encoder_files=self.encoder.contents if self.encoder else None,
        )
        self.work.keep_only(self.finished.values())
        write_manifest(self.path, manifest, self.finished)
        if (self.folder / MANIFEST).is_file():
            self.folder.rename(self.old)
        self.path.rename(self.folder)
        remove(self.old)
        # Not before: a build that is killed in between would have lost what it had.
        WorkFolder(self.folder).clear()
        self.say(f"index ready: {self.folder}")
        too_long = too_long_passages(self.folder / CORPUS_FOLDER)
        if too_long:
            self.say(
                f"{count_text(too_long, 'passage')} of {len(corpus):,} longer than the {PRINTED_TOKENS} tokens that a "
                "program may print by default: no program can show them whole, so split them"
            )


def work_folder(folder: Path) -> Path:
    """Returns where an index is built: beside its folder, so that it can be renamed into place."""
    return folder.parent / f".{folder.name}.building"


def restore(folder: Path) -> None:
    """Gives an older index its name back, if a build was killed when it had just moved it out of the way."""
    old = _replaced(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)


def source_fingerprint(source: Corpus | Path, read: bool = True) -> str | None:
    """Returns the fingerprint of a corpus; that of a file that must be read for it only if `read` is set."""
    if isinstance(source, Corpus):
        return source.fingerprint
    return file_fingerprint(source) if read else known_fingerprint(source)


def donors(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields finished indexes that parts may be taken from, with their manifests."""
    in_cache = folder.parent == cache_dir() / "indexes"
    for other in [folder, *(sorted(folder.parent.glob("[!.]*")) if in_cache else [])]:
        manifest = peek_manifest(other)
        if manifest is not None:
            yield other, manifest


def part_key(manifest: dict[str, Any], name: str) -> str | None:
    """Returns the key of a part of a finished index."""
    return (manifest["parts"].get(name) or {}).get("key")


def _replaced(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.replaced"
