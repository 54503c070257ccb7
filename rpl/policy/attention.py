"""Grouped-query attention that never copies keys and values for the query heads that share them.

The query heads of a group are laid end to end along the query-length axis, so that one call on the key heads serves
all of them. Results equal transformers' `sdpa` and `eager` up to rounding; in bf16 on a CPU one decoding step is
several times faster. Registered with transformers as `rpl_gqa`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

NAME = "rpl_gqa"


def gqa_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes attention in the form that transformers' attention interface asks for.

    Args:
        module: The attention layer.
        query: `(batch, heads, length, dim)`.
        key: `(batch, key_heads, positions, dim)`; `heads` is a multiple of `key_heads`.
        value: Like `key`.
        attention_mask: `(batch, 1, length or 1, positions)`, additive or boolean; `None` means causal.
        dropout: Probability.
        scaling: Factor on the scores; `None` means `dim ** -0.5`.
        **kwargs: Passed on where transformers' own function has to serve (no mask, or one mask a head).

    Returns:
        The output `(batch, length, heads, dim)`, and `None` in place of attention weights.
    """
    groups = query.shape[1] // key.shape[1]
    if groups == 1 or attention_mask is None or attention_mask.shape[1] != 1:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    mask = attention_mask if attention_mask.shape[2] == 1 else attention_mask.repeat(1, 1, groups, 1)
    out = grouped_attention(query, key, value, mask, dropout, scaling)
    return out.transpose(1, 2).contiguous(), None


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout: float, scaling: float | None
) -> Tensor:
    """Serves query heads that share keys together, end to end along the length.

    Args:
        query: `(batch, heads, length, dim)`.
        key: `(batch, key_heads, positions, dim)`.
        value: Like `key`.
        mask: `(batch, 1, 1 or heads / key_heads * length, positions)`.
        dropout: Probability.
        scaling: Factor on the scores; `None` means `dim ** -0.5`.

    Returns:
        `(batch, heads, length, dim)`.
    """
    batch, heads, length, dim = query.shape
    folded = query.reshape(batch, key.shape[1], heads // key.shape[1] * length, dim)
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return out.reshape(batch, heads, length, value.shape[-1])


def attention_kinds(config: Any) -> set[str]:
    """Returns the kinds of attention in the layers of a model, as transformers names them.

    Only in layers of the kind `full_attention` does each token attend to all earlier ones.
    Where a configuration lists its layers, the list holds. Where its class knows no list (Mistral, Phi-3), a bare
    `sliding_window` holds for every layer, even beside a list, which nothing would read.

    Args:
        config: The configuration of a transformers model.
    """
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if window and not (kinds and hasattr(type(config), "layer_types")):
        kinds.add("sliding_attention")
    if not kinds and getattr(config, "attention_chunk_size", None):
        kinds.add("chunked_attention")
    return kinds or {"full_attention"}


def register() -> None:
    """Makes `attn_implementation="rpl_gqa"` known to transformers; may be called any number of times."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, gqa_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
