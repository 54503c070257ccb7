"""What a model can take: plain text at all, positions of its transcripts, and ids of its tokenizer."""

from __future__ import annotations

from typing import Any

from rpl.core.errors import CheckpointError, ConfigError

_NAMED = 5  # tokens that a message names


def check_causal(config: Any, policy: Any) -> None:
    """Holds a model's configuration against what a policy is: a decoder that goes on with a text.

    Raises:
        CheckpointError: It is an encoder-decoder, or transformers knows no causal language model of this kind.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = (getattr(config, "architectures", None) or [type(config).__name__])[0]
    if getattr(config, "is_encoder_decoder", False):
        raise CheckpointError(f"policy {str(policy)!r}: {kind} is an encoder-decoder; a policy must be a decoder alone")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise CheckpointError(f"policy {str(policy)!r}: {kind} is no causal language model that transformers knows")


def positions(model: Any) -> int | None:
    """Returns the longest transcript that a transformers model reads, in tokens; `None` where nothing bounds it."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def check_context(tokens: int, limit: int | None, reader: str) -> None:
    """Holds the longest transcript of rollouts against the positions of the model that reads it.

    Args:
        tokens: `max_context_tokens` of the rollouts.
        limit: `positions` of the model.
        reader: Class of the model, for the message.

    Raises:
        ConfigError: The transcripts may be longer.
    """
    if limit is not None and tokens > limit:
        raise ConfigError(
            f"rollout.max_context_tokens is {tokens}, but {reader} reads {limit} positions (max_position_embeddings); "
            f"set it to {limit} or less"
        )


def check_vocabulary(model: Any, tokenizer: Any, folder: Any) -> None:
    """Holds the ids of a tokenizer against the embedding of its model.

    Raises:
        CheckpointError: There are tokens without an embedding; the message names them.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    outside = sorted((number, token) for token, number in tokenizer.get_vocab().items() if number >= rows)
    if outside:
        named = ", ".join(f"{token!r} ({number})" for number, token in outside[:_NAMED])
        more = f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else ""
        raise CheckpointError(
            f"{folder}: the embedding has {rows} rows, but the tokenizer has tokens beyond them: {named}{more}; resize "
            "the embedding (resize_token_embeddings) or use the tokenizer that the model was trained with"
        )
