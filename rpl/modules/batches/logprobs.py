"""Log-probabilities of the trained tokens of a micro-batch under a transformers causal language model.

Shapes: N is the number of trained tokens of a micro-batch, H the hidden size, V the vocabulary. An empty batch gives
empty tensors that still have a graph, so that every rank can enter the same collectives.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from rpl.core.errors import ConfigError
from rpl.modules.batches.micro_batches import MicroBatch
from rpl.modules.batches.shared_attention import NAME, use_shared_attention
from rpl.policy.weights.sharding import is_sharded

_METHOD = "rpl_score"


def score_tokens(
    model: Any,
    batch: MicroBatch,
    *,
    temperature: float = 1.0,
    entropy: Literal["none", "detached", "grad"] = "none",
    chunk_tokens: int = 1024,
) -> tuple[Tensor, Tensor]:
    """Runs the decoder over all tokens and the output layer over the hidden states that predict trained ones.

    Args:
        model: A transformers causal language model, sharded by FSDP2 or not.
        batch: Packed, if the model can take that (see `can_share`), or right-padded, so that causal attention alone
            keeps real tokens from seeing pads: no mask is built.
        temperature: Of the sampler.
        entropy: See `token_logprobs`.
        chunk_tokens: See `token_logprobs`.

    Returns:
        Log-probabilities and entropies, both `(N,)` float32.
    """
    if batch.packing is not None and model.config._attn_implementation != NAME:
        use_shared_attention(model)
    if not hasattr(model, _METHOD):
        setattr(model, _METHOD, MethodType(_score, model))
        # A sharded model gathers and frees its parameters around methods that it knows.
        register_fsdp_forward_method(model, _METHOD)
    # Under bf16-mixed a sharded model has its own precision policy; other models are in the Trainer's autocast.
    kind = batch.input_ids.device.type
    enabled = torch.is_autocast_enabled(kind) and not is_sharded(model)
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=enabled, cache_enabled=False):
        scores: tuple[Tensor, Tensor] = getattr(model, _METHOD)(batch, temperature, entropy, chunk_tokens)
    return scores


def _score(
    model: Any, batch: MicroBatch, temperature: float, entropy: Literal["none", "detached", "grad"], chunk_tokens: int
) -> tuple[Tensor, Tensor]:
    decoder, packing = model.get_decoder(), batch.packing
    if packing is None:
        hidden = gather_trained(decoder(input_ids=batch.input_ids, use_cache=False).last_hidden_state, batch.loss_mask)
        targets = batch.targets
    else:
        output = decoder(
            input_ids=packing.token_ids.unsqueeze(0),
            position_ids=packing.position_ids.unsqueeze(0),
            use_cache=False,
            rpl_layout=packing.layout,
        )
        hidden, targets = output.last_hidden_state[0].index_select(0, packing.predictors), packing.targets
    head = model.get_output_embeddings()
    logprobs, entropies = token_logprobs(
        hidden,
        head.weight,
        targets,
        temperature=temperature,
        bias=head.bias,
        softcap=getattr(model.config, "final_logit_softcapping", None),
        entropy=entropy,
        chunk_tokens=chunk_tokens,
    )
    if packing is None:
        return logprobs, entropies
    return logprobs.index_select(0, packing.expand), entropies.index_select(0, packing.expand)


def check_scorable(model: Any) -> None:
    """Refuses models whose logits are not a plain linear map of the last hidden states.

    Raises:
        ConfigError: The model scales its logits.
    """
    for name in ("logit_scale", "logits_scaling"):
        if getattr(model.config, name, None) not in (None, 1, 1.0):
            raise ConfigError(f"policy: {type(model).__name__} scales its logits ({name}); it is not supported")


def gather_trained(hidden: Tensor, loss_mask: Tensor) -> Tensor:
    """Picks the hidden states that *predict* the trained tokens.

    Args:
        hidden: `(B, T, H)` last hidden states.
        loss_mask: `(B, T)` bool, True where a token is trained on. The first column is never trained: nothing
            predicts it.

    Returns:
        `(N, H)`, in row-major order of `loss_mask`.
    """
    return hidden[:, :-1][loss_mask[:, 1:]]


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    bias: Tensor | None = None,
    softcap: float | None = None,
    entropy: Literal["none", "detached", "grad"] = "none",
    chunk_tokens: int = 1024,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of given tokens, with vocabulary-wide logits for at most `chunk_tokens` tokens at a time.

    More than one chunk means that the logits of each are computed again in the backward pass instead of being kept,
    so memory is bounded by one chunk whatever N is.

    Args:
        hidden: `(N, H)` hidden states that predict `targets`.
        weight: `(V, H)` output embedding.
        targets: `(N,)` token ids.
        temperature: Logits are divided by it, as the sampler does; positive.
        bias: `(V,)` output bias, if the model has one.
        softcap: Logits are squashed to `softcap * tanh(logits / softcap)` first, for models that do so.
        entropy: Whether to compute the entropy of the whole distribution, and whether with its gradient.
        chunk_tokens: Tokens a chunk.

    Returns:
        Float32 log-probabilities and entropies in nats, both `(N,)`; entropies are zero when not asked for.

    Raises:
        ConfigError: `temperature` is not positive.
    """
    if not temperature > 0:
        raise ConfigError(f"log-probabilities need a positive temperature, got {temperature}")

    def one_chunk(h: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(h, weight, bias).float()
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        if temperature != 1.0:
            logits = logits / temperature
        logprobs = F.log_softmax(logits, dim=-1)
        chosen = logprobs.gather(-1, t[:, None])[:, 0]
        if entropy == "none":
            return chosen, torch.zeros_like(chosen)
        with torch.set_grad_enabled(entropy == "grad" and torch.is_grad_enabled()):
            spread = -torch.linalg.vecdot(logprobs.exp(), logprobs)
        return chosen, spread

    if hidden.shape[0] <= chunk_tokens:
        return one_chunk(hidden, targets)
    parts = []
    for h, t in zip(hidden.split(chunk_tokens), targets.split(chunk_tokens), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(one_chunk, h, t, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(one_chunk(h, t))
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
