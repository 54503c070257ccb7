"""Drawing a token: pure functions of logits, temperature and one uniform number a row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

_BLOCK = 256


def draw(logits: Tensor, temperature: float, uniforms: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Draws one token a row by inverting the cumulative distribution.

    Args:
        logits: `(rows, vocabulary)`, any floating type; computed with in float32.
        temperature: Softmax temperature; 0 means the most likely token.
        uniforms: One number in [0, 1) a row; not used when greedy.

    Returns:
        Token ids `(rows,)` and their log-probabilities `(rows,)` in float32, over the whole vocabulary, at
        `temperature` (at 1 when greedy).

    >>> token, logprob = draw(torch.tensor([[0.0, 0.0]]), 1.0, [0.75])
    >>> token.item(), round(logprob.item(), 4)
    (1, -0.6931)
    """
    if temperature == 0.0:
        scores = logits.float()
        top, tokens = scores.max(-1)
        return tokens, top - scores.logsumexp(-1)
    # One buffer of the vocabulary's size, worked on in place: fresh memory costs more than the arithmetic.
    mass = logits.to(torch.float32, copy=True)
    if temperature != 1.0:
        mass /= temperature
    mass.sub_(mass.amax(-1, keepdim=True)).exp_()
    rows, vocabulary = mass.shape
    if vocabulary % _BLOCK:
        mass = F.pad(mass, (0, -vocabulary % _BLOCK))
    # Two levels, block then token: one long float32 cumulative sum would be slow and lose the tail.
    blocks = mass.view(rows, -1, _BLOCK)
    edges = blocks.sum(-1).double().cumsum(-1)
    total = edges[:, -1:]
    target = torch.tensor(uniforms, dtype=torch.float64, device=logits.device).unsqueeze(1) * total
    block = torch.searchsorted(edges, target, right=True).clamp_(max=edges.shape[1] - 1)
    before = torch.where(block > 0, edges.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(rows, device=logits.device), block.squeeze(1)]
    offset = torch.searchsorted(inside.double().cumsum(-1), target - before, right=True)
    # Rounding may point past the block's mass; the last token that has any takes it.
    last = ((inside > 0) * torch.arange(_BLOCK, device=logits.device)).amax(-1, keepdim=True)
    tokens = block * _BLOCK + torch.minimum(offset, last)
    logprobs = (mass.gather(1, tokens).double() / total).log().float()
    return tokens.squeeze(1), logprobs.squeeze(1)
