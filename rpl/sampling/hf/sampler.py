"""Sampling with a transformers model in continuous slots, exact for the weights being trained.

What makes it fast: keys and values stay in a slot as long as a transcript grows; what several transcripts have in
common is run once (see `slots`); prompts and observations are run in batches of like length; a finished transcript
leaves the decoding batch and its slot goes to the next one; query heads that share keys are served together (see
`attention`); only the last position's logits exist.
"""

from __future__ import annotations

from typing import Any, Literal

from rpl.core.errors import ConfigError
from rpl.policy.attention import attention_kinds
from rpl.policy.limits import positions
from rpl.sampling.hf.session import HFSession
from rpl.sampling.sampler import Sampler
from rpl.sampling.stopping import StopDetector


class HFSampler(Sampler):
    """Draws from a transformers causal language model with full attention.

    Args:
        dtype: Type of the matrix products: `float32`, `bfloat16` (autocast, about twice as fast on a CPU with bf16
            instructions), or `auto` for what the model's device multiplies fastest. Use the trainer's, so that both see
            the same log-probabilities.
        prefill_tokens: Most tokens in one pass over prompts or observations; `None` chooses by device.
        stride: Decoding steps in one `advance`. What was asked for meanwhile waits for its end; a program that was
            finished in it runs during the next one.
    """

    def __init__(
        self,
        dtype: Literal["float32", "bfloat16", "auto"] = "float32",
        prefill_tokens: int | None = None,
        stride: int = 8,
    ) -> None:
        if dtype not in ("float32", "bfloat16", "auto"):
            raise ConfigError(f"sampler dtype {dtype!r}: allowed are 'float32', 'bfloat16' and 'auto'")
        if prefill_tokens is not None and prefill_tokens < 1:
            raise ConfigError(f"sampler prefill_tokens must be at least 1, got {prefill_tokens}")
        if stride < 1:
            raise ConfigError(f"sampler stride must be at least 1, got {stride}")
        self.dtype = dtype
        self.prefill_tokens = prefill_tokens
        self.stride = stride
        self.model: Any = None
        self.tokenizer: Any = None
        self._detectors: dict[tuple[str, ...], StopDetector] = {}

    def connect(self, model: Any, tokenizer: Any) -> None:
        """Sets the policy; each session reads the weights when it first runs them, so nothing else is needed.

        Raises:
            ConfigError: The model has layers that do not attend to all earlier tokens.
        """
        kinds = attention_kinds(model.config)
        if kinds != {"full_attention"}:
            raise ConfigError(
                f"HFSampler handles models with full attention only; {type(model).__name__} has {sorted(kinds)}: "
                "use VLLMSampler"
            )
        self.model, self.tokenizer = model, tokenizer
        self.max_positions = positions(model)
        self._detectors = {}

    def detector(self, stops: tuple[str, ...]) -> StopDetector:
        """Returns the stop detector of the connected tokenizer, which remembers what it learnt about tokens."""
        if stops not in self._detectors:
            self._detectors[stops] = StopDetector(self.tokenizer, stops)
        return self._detectors[stops]

    def open(self) -> HFSession:
        """Starts a session; see `Sampler.open`."""
        if self.model is None:
            raise ConfigError("the sampler has no model yet: call connect(model, tokenizer) first")
        return HFSession(self)
