"""Shares the encoding of one corpus among several processes, one on each GPU.

The work folder of the build holds the settings of the encoder; corpus, embeddings and the state of their shards are in
it as well. Every process takes shards that nobody has taken, so that it does not matter how many there are, when they
come and whether one is killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from rpl.core.errors import ConfigError, DataError
from rpl.core.files import write_json
from rpl.core.hub import lasting_name
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.corpus.store import open_store
from rpl.retrieval.dense.encoders import Encoder
from rpl.retrieval.dense.search import prepare_embedding, share_embedding
from rpl.retrieval.indexing.loading import CORPUS_FOLDER, EMBEDDINGS_FILE, load_encoder
from rpl.retrieval.indexing.manifest import MANIFEST
from rpl.retrieval.indexing.plan import STATE_FILE
from rpl.retrieval.library_config import LibraryConfig

INVITATION = ".encoding.json"

_SETTINGS = (
    "encoder",
    "passage_prefix",
    "encoder_batch_size",
    "encoder_precision",
    "encoder_pooling",
    "encoder_max_tokens",
)
_POLL_S = 0.5


def invite(folder: Path, corpus: Corpus, config: LibraryConfig, encoder: Encoder) -> None:
    """Lets other processes encode shards of a corpus from now on.

    Args:
        folder: Where the index is built; the corpus is finished there.
        corpus: The passages.
        config: With the settings of the encoder.
        encoder: The one it names.
    """
    path, state = folder / EMBEDDINGS_FILE, folder / STATE_FILE
    prepare_embedding(len(corpus), encoder.dim, path, config.embedding_dtype, state)
    settings = {name: value for name, value in asdict(config).items() if name in _SETTINGS}
    settings["encoder"] = lasting_name(config.encoder)
    write_json(folder / INVITATION, {"settings": settings, "fingerprint": encoder.fingerprint})


def join(
    folder: Path, target: Path, device: str = "auto", wait_s: float = 600.0, say: Callable[[str], None] | None = None
) -> None:
    """Encodes shards for a build of another process, until all are done.

    Args:
        folder: Where that index is built.
        target: Where it will lie.
        device: Where the encoder runs here.
        wait_s: How long to wait for a build to begin or to have read its corpus, in seconds.
        say: Receives a line a step.

    Raises:
        ConfigError: No build has invited in that time.
        DataError: The encoder here is not that of the build.
    """
    say = say or (lambda _: None)
    until = time.monotonic() + wait_s
    waiting = False
    while not (folder / INVITATION).exists():
        if (target / MANIFEST).exists() and not folder.exists():
            say(f"{target}: the index is finished")
            return
        if time.monotonic() > until:
            raise ConfigError(f"{target}: nobody builds this index with embeddings; start `rpl index build` first")
        if not waiting:
            say(f"waiting for a build of {target} to have read its corpus")
        waiting = True
        time.sleep(_POLL_S)
    invitation = json.loads((folder / INVITATION).read_text(encoding="utf-8"))
    encoder = load_encoder(replace(LibraryConfig(dense=True, device=device), **invitation["settings"]))
    if encoder.fingerprint != invitation["fingerprint"]:
        raise DataError(f"library.encoder: {encoder.name!r} has other files here than where {target} is built")
    try:
        share_embedding(open_store(folder / CORPUS_FOLDER), encoder, folder / EMBEDDINGS_FILE, folder / STATE_FILE)
    except (DataError, FileNotFoundError):
        # The others may have been faster: then the folder has been renamed meanwhile.
        if folder.exists():
            raise
    say(f"{target}: all passages are encoded")
