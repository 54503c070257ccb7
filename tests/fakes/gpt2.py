"""A small random GPT-2 over the tiny policy's tokenizer: learnt positions, and dropout in its configuration."""

from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from rpl.policy.tiny import tiny_tokenizer


def gpt2_folder(folder: Path, positions: int = 512, dropout: float = 0.1, vocabulary: int | None = None) -> Path:
    """Saves it and returns its folder.

    Args:
        folder: Where to save.
        positions: Longest transcript that it reads.
        dropout: Of everything that GPT-2 drops.
        vocabulary: Rows of the embedding; `None` takes those of the tokenizer.
    """
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    config = GPT2Config(
        vocab_size=vocabulary or len(tokenizer),
        n_positions=positions,
        n_embd=32,
        n_layer=2,
        n_head=4,
        attn_pdrop=dropout,
        embd_pdrop=dropout,
        resid_pdrop=dropout,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
