"""Checks a copy of the weights: compares log-probabilities of the engine and the trained model on the same text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

TEXT = (
    "Question: Which river flows through Lyon, and where does it end?\n<program>\n"
    "for p in bm25('Lyon river', k=5):\n    print(p)\n</program>\nThe Rhône ends in the Mediterranean Sea, near Arles."
)
"""What is scored: ordinary words, names, numbers and a program."""
NEW_TOKENS = 8
TEMPERATURE = 2.0
"""Not 1, so that log-probabilities at another temperature than the sampling one are noticed."""
SEED = 20_260_101


def probe_ids(tokenizer: Any) -> list[int]:
    """Returns the token ids of the text."""
    ids: list[int] = tokenizer.encode(TEXT, add_special_tokens=False)
    return ids


def model_logprobs(model: Any, ids: Sequence[int], start: int, temperature: float) -> tuple[list[float], list[float]]:
    """Scores a transcript with one pass of the model, in the precision that is in force.

    Collective if the model is sharded and not gathered; it is left as sharded as it was.

    Args:
        model: A transformers causal language model.
        ids: The transcript.
        start: Where its sampled part begins; at least 1.
        temperature: Of the sampled part.

    Returns:
        Log-probabilities of the tokens from the second one to `start`, at temperature 1, and of those from `start` on.
    """
    training = model.training
    sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    # Casts of weights that an outer autocast made here would be kept: without gradient, and of weights that change.
    torch.clear_autocast_cache()
    try:
        model.eval()
        device = next(model.parameters()).device
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([list(ids)], device=device), use_cache=False).logits[0, :-1].float()
    finally:
        torch.clear_autocast_cache()
        model.train(training)
        for part in model.modules() if sharded else ():
            if isinstance(part, FSDPModule):
                part.reshard()  # FSDP2 keeps the root's weights gathered after a pass
    targets = torch.tensor(list(ids[1:]), device=logits.device)
    logits[start - 1 :] /= temperature
    values = logits.log_softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1).tolist()
    return values[: start - 1], values[start - 1 :]


def mean_gap(first: Sequence[float], second: Sequence[float]) -> float:
    """Mean absolute difference.

    >>> mean_gap([-1.0, -2.0], [-1.5, -2.0])
    0.25
    """
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first)
