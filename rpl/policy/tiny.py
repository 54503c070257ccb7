"""A tiny random causal language model with a byte-level tokenizer, for tests and dry runs; no download."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from rpl.core.files import digest

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The ChatML template, without a default system message."""

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
WEIGHT_STD = 0.1
SEED = 20_260_101


def tiny_tokenizer() -> Any:
    """Builds the tokenizer: one token a byte, plus padding, begin and end of a chat turn."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(special + symbols)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=SHAPE["max_position_embeddings"],
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def tiny_weights(vocab_size: int, pad: int, bos: int, eos: int) -> Any:
    """Builds the Llama-style model: two layers, grouped-query attention 4/2, the same weights every time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=vocab_size, pad_token_id=pad, bos_token_id=bos, eos_token_id=eos, **SHAPE)
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, WEIGHT_STD, generator=generator)
    return model.eval()


def tiny_model(cache: Path) -> Path:
    """Returns the folder of the tiny model, building it on first use.

    Args:
        cache: The folder for built models.
    """
    folder = cache / f"tiny-{digest(repr(SHAPE), repr(WEIGHT_STD), repr(SEED), CHATML, 'bytes-1')[:8]}"
    if (folder / "config.json").is_file():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=cache, prefix=".tiny."))
    try:
        tokenizer = tiny_tokenizer()
        model = tiny_weights(len(tokenizer), tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
        save_on_any_rank(model, temporary)
        tokenizer.save_pretrained(temporary)
        publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def save_on_any_rank(model: Any, folder: Path) -> None:
    """Saves a transformers model. In a process group, `save_pretrained` alone writes nothing but on rank 0."""
    model.should_save_on_this_rank = bool
    model.save_pretrained(folder)


def publish(temporary: Path, folder: Path) -> None:
    """Renames a finished folder into place; if another process was faster, its equal copy stays."""
    os.chmod(temporary, 0o755)
    try:
        os.replace(temporary, folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise
