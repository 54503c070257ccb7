"""How likely a model finds a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def mean_logprobs(model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], batch_size: int) -> list[float]:
    """Scores continuations under a causal language model at temperature 1.

    Args:
        model: Called as `model(input_ids=…, attention_mask=…, position_ids=…)`; its output has `logits` `(B, T, V)`.
        pairs: Context and continuation token ids, neither empty.
        batch_size: Pairs at a time.

    Returns:
        The mean log-probability a continuation token of each pair, in nats.
    """
    out: list[float] = []
    device = next(model.parameters()).device
    for start in range(0, len(pairs), batch_size):
        part = [(list(context), list(continuation)) for context, continuation in pairs[start : start + batch_size]]
        longest = max(len(context) + len(continuation) for context, continuation in part)
        ids = torch.zeros((len(part), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, (context, continuation) in enumerate(part):
            tokens = context + continuation
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        with torch.inference_mode():
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
            logits = model(
                input_ids=ids.to(device), attention_mask=mask.to(device), position_ids=positions.to(device)
            ).logits
            for row, (context, continuation) in enumerate(part):
                first, last = len(context) - 1, len(context) + len(continuation) - 1
                logprobs = torch.log_softmax(logits[row, first:last].float(), dim=-1)
                targets = torch.tensor(continuation, device=logprobs.device)
                out.append(float(logprobs.gather(1, targets[:, None]).mean()))
    return out
