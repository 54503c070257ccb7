"""Log-probabilities of the trained tokens of a micro-batch under a transformers causal language model."""

from __future__ import annotations

from types import MethodType
from typing import Any, Literal

from torch import Tensor
from torch.distributed.fsdp import register_fsdp_forward_method

from rpl.core.errors import ConfigError
from rpl.modules.batching import MicroBatch
from rpl.modules.losses import gather_trained, token_logprobs
from rpl.modules.shared_attention import NAME, use_shared_attention

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
