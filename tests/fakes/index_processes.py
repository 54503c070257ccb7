"""Builds of one small index that are killed in each of their stages, and builds that several processes share.

Run as a script, which imports once and forks a child for each build: `python index_processes.py kill CORPUS FOLDER` or
`python index_processes.py share CORPUS FOLDER`.
"""

import os
import signal
import sys
import time
from pathlib import Path

import bm25s  # noqa: F401 - once, and not in every child
import faiss  # noqa: F401
import marisa_trie  # noqa: F401

from rpl.retrieval.corpus import store as corpus_store
from rpl.retrieval.dense import faiss_indexes
from rpl.retrieval.dense import search as dense
from rpl.retrieval.dense.encoders import HashEncoder
from rpl.retrieval.indexing import building, estimate, plan, shared_encoding
from rpl.retrieval.indexing import folder as index_folder
from rpl.retrieval.keyword import bm25_arrays
from rpl.retrieval.library_config import LibraryConfig

CONFIG = LibraryConfig(dense=True, encoder="hash", dense_index="sq8")
OTHER = LibraryConfig(dense=True, encoder="hash", dense_index="fp16", bm25_k1=1.3)
SHARD = 16
STAGES = ("corpus", "keyword", "links", "embeddings", "dense", "manifest", "rename")
"""The index `rename` replaces one that was built as `OTHER` says."""


def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


class DyingEncoder(HashEncoder):
    """Notes its process for each shard, may wait before one, and dies when it is asked for more than `shards`."""

    def __init__(self, shards, log=None, wait=lambda done: True):
        super().__init__()
        self.done, self.shards, self.log, self.wait = 0, shards, log, wait

    def encode(self, texts, kind, on_batch=None):
        if kind == "passage" and len(texts) > 1:
            if self.done == self.shards:
                note(self.log, "dead")
                die()
            until = time.monotonic() + 30
            while not self.wait(self.done) and time.monotonic() < until:
                time.sleep(0.01)
            note(self.log, os.getpid())
            self.done += 1
        return super().encode(texts, kind, on_batch)


def note(log, word):
    if log is not None:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{word}\n")


def break_at(stage):
    """Makes this process die in a stage, with something of it on disk."""

    def dying(path, *names):
        for name in names:
            (path / name).write_bytes(b"half")
        die()

    if stage == "corpus":
        corpus_store._write_ids = die
    elif stage == "keyword":
        bm25_arrays._ranges = die
    elif stage == "links":
        plan.build_links = lambda corpus, folder: dying(folder, "offsets.npy", "more")
    elif stage == "dense":
        faiss_indexes.SQ8.build = lambda self, rows, folder: dying(folder, "index.faiss", "more")
    elif stage == "manifest":
        building.write_manifest = lambda path, *rest: dying(path, "manifest.json")
    elif stage == "rename":
        calls, rename = [], Path.rename
        Path.rename = lambda self, target: die() if len(calls) == 1 else (calls.append(1), rename(self, target))


def killed(stage, corpus, folder):
    """Builds until it dies."""
    if stage == "rename":
        index_folder.ensure_index(corpus, folder, OTHER, HashEncoder())
    break_at(stage)
    encoder = DyingEncoder(3 if stage == "embeddings" else -1)
    index_folder.ensure_index(corpus, folder, CONFIG, encoder)


def fork(function, *args):
    """Runs a function in a child and returns its process id."""
    child = os.fork()
    if child == 0:
        try:
            function(*args)
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
    return child


def share(corpus, folder):
    """One process builds, two join, of which one dies with a shard in its hands. They wait so that all take part."""
    log, target = folder / "log", folder / "index"
    log.touch()

    def noted():
        return set(log.read_text(encoding="utf-8").split())

    def join(shards, wait):
        shared_encoding.load_encoder = lambda config: DyingEncoder(shards, log, wait)
        shared_encoding.join(index_folder.work_folder(target), target)

    def build():
        encoder = DyingEncoder(-1, log, lambda done: len(noted()) >= 3)
        index_folder.ensure_index(corpus, target, CONFIG, encoder)

    children = [
        fork(join, 1, lambda done: True),
        fork(join, -1, lambda done: "dead" in noted() if done == 0 else len(noted()) >= 4),
        fork(build),
    ]
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])  # noqa: T201


def main(what, corpus, folder):
    dense.SHARD_PASSAGES, shared_encoding._POLL_S = SHARD, 0.01
    # One passage at a time, which no encoder here takes for a shard.
    estimate._ENCODED = 1
    if what == "share":
        share(corpus, folder)
        return
    for stage in STAGES:
        (folder / stage).mkdir()
        child = fork(killed, stage, corpus, folder / stage / "index")
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != -signal.SIGKILL:
            raise SystemExit(f"the build did not die in {stage}: {status}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
