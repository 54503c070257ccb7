"""Reranking with a causal language model that says yes or no, in the form of Qwen3-Reranker.

The model reads an instruction, the query and one passage; of the probability that the next token is `yes` or `no`, the
share of `yes` is the score. Source: Zhang et al., 2025, "Qwen3 Embedding", section 2, and the model cards.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rpl.core.encoding import TextEncoder, template_markers
from rpl.core.errors import ConfigError, MissingDependencyError, RetrieverError
from rpl.core.hub import resolve_model_folder
from rpl.core.records import Passage
from rpl.retrieval.base import Reranker
from rpl.retrieval.corpus.corpus import contents
from rpl.retrieval.dense.encoders import Encoder
from rpl.retrieval.engines import RerankEngine
from rpl.retrieval.rerank.rerankers import order_by

if TYPE_CHECKING:
    from rpl.retrieval.library_config import LibraryConfig

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""What counts as relevant, in the words that the published models were trained with."""

HEAD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
BODY = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class YesNoReranker(Reranker):
    """Scores each pair of query and passage by the probability of `yes`.

    Args:
        folder: The model's folder.
        name: As written in the settings.
        instruction: What counts as relevant.
        max_tokens: Longest prompt; passages are cut at their end to fit.
        device: `auto` or a torch device.
        batch_size: Pairs scored at once; `None` means 8 on a CPU and 64 on a GPU.
        precision: Number format of the weights: `float32` or `bfloat16`.

    Raises:
        ConfigError: The folder cannot be loaded as a causal model, or its tokenizer has no tokens `yes` and `no`.
        MissingDependencyError: transformers is not installed.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        instruction: str = INSTRUCTION,
        max_tokens: int = 8192,
        device: str = "auto",
        batch_size: int | None = None,
        precision: str = "float32",
    ) -> None:
        self.name = name
        self.instruction = instruction
        self._lock = threading.Lock()
        self._tokenizer, self._model = _load(folder, device, precision)
        self.batch_size = batch_size or (8 if self._model.device.type == "cpu" else 64)
        self._encoder = TextEncoder(self._tokenizer, template_markers((HEAD, BODY, TAIL), self._tokenizer))
        self._head, self._tail = self._ids(HEAD), self._ids(TAIL)
        self._room = max_tokens - len(self._head) - len(self._tail)
        if self._room < 1:
            raise ConfigError(
                f"library.reranker: max_tokens must be above {max_tokens - self._room} for the prompt alone, got "
                f"{max_tokens}"
            )
        self._answers = [self._answer("no"), self._answer("yes")]

    def rerank(self, query: str, passages: Sequence[Passage]) -> list[Passage]:
        """Returns the passages by falling probability of `yes`; see `Reranker.rerank`."""
        if not passages:
            return []
        try:
            prompts = [self._prompt(query, passage) for passage in passages]
            # Prompts of like length share a batch, so that little is spent on padding.
            order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
            scores = np.empty(len(prompts), dtype=np.float64)
            with self._lock:
                for start in range(0, len(order), self.batch_size):
                    rows = order[start : start + self.batch_size]
                    scores[rows] = self._score([prompts[i] for i in rows])
        except Exception as error:
            raise RetrieverError(f"reranker {self.name!r} failed: {type(error).__name__}: {error}") from error
        return order_by(passages, scores)

    def _prompt(self, query: str, passage: Passage) -> list[int]:
        document = contents(passage.title, passage.text)
        parts = {"instruction": self.instruction, "query": query, "document": document}
        body = BODY.format_map({name: self._encoder.outside(text) for name, text in parts.items()})
        return self._head + self._encoder.encode(body)[: self._room] + self._tail

    def _score(self, prompts: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        import torch

        # Padding stands on the left, so that the last place is the answer's in every row.
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        device = self._model.device
        with torch.inference_mode():
            logits = self._model(
                input_ids=ids.to(device),
                attention_mask=mask.to(device),
                position_ids=(mask.cumsum(1) - 1).clamp(min=0).to(device),
                logits_to_keep=1,
                use_cache=False,
            ).logits[:, -1, self._answers]
        found: NDArray[np.float64] = logits.double().softmax(-1)[:, 1].cpu().numpy()
        return found

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _answer(self, word: str) -> int:
        ids = self._ids(word)
        if len(ids) != 1 or ids[0] == self._tokenizer.unk_token_id:
            raise ConfigError(f"library.reranker: {self.name!r} has no token {word!r}; it is no yes/no reranker")
        return ids[0]


@dataclass(frozen=True)
class YesNo(RerankEngine):
    """A yes/no causal reranker such as Qwen3-Reranker.

    Raises:
        ConfigError: A number is too small.
    """

    model: str = "Qwen/Qwen3-Reranker-0.6B"
    """Local folder or hub name."""
    instruction: str = INSTRUCTION
    """What counts as relevant."""
    max_tokens: int = 8192
    """Longest prompt; passages are cut at their end to fit."""
    batch_size: int | None = None
    """Pairs scored at once; `None` means 8 on a CPU and 64 on a GPU."""

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(f"library.reranker: batch_size must be at least 1, got {self.batch_size}")

    def open(self, config: LibraryConfig, encoder: Encoder | None) -> YesNoReranker:
        """Loads the model; see `RerankEngine.open`."""
        folder = resolve_model_folder(self.model, "library.reranker")
        return YesNoReranker(
            folder,
            self.model,
            self.instruction,
            self.max_tokens,
            config.device,
            self.batch_size,
            config.encoder_precision,
        )


def _load(folder: Path, device: str, precision: str) -> tuple[Any, Any]:
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ImportError as error:
        raise MissingDependencyError("library.reranker needs transformers: pip install transformers") from error
    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=getattr(torch, precision)
        )
        return tokenizer, model.to(where).eval()
    except (OSError, ValueError, KeyError, RuntimeError, AssertionError) as error:
        raise ConfigError(f"library.reranker: {folder} cannot be loaded on device {device!r}: {error}") from error
    finally:
        if bars:
            logging.enable_progress_bar()
