"""Rerankers with tiny random weights, made on the spot."""

from pathlib import Path

WORDS = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nriver\ncastle\nking\nqueen\nquery\npassage\n:\n"


def bert_parts(folder: Path):
    """A config and a tokenizer of a one-layer BERT over a dozen words."""
    import torch
    from transformers import BertConfig, BertTokenizer

    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text(WORDS)
    config = BertConfig(
        vocab_size=WORDS.count("\n"),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        num_labels=1,
        initializer_range=0.3,  # or all scores would be alike
    )
    return config, BertTokenizer(str(folder / "vocab.txt"))


def cross_encoder(folder: Path) -> Path:
    """Saves a cross-encoder and returns its folder."""
    from transformers import BertForSequenceClassification

    config, tokenizer = bert_parts(folder / "parts")
    BertForSequenceClassification(config).save_pretrained(folder / "cross")
    tokenizer.save_pretrained(folder / "cross")
    return folder / "cross"


def yes_no(folder: Path) -> Path:
    """Saves a Qwen3 whose tokenizer knows letters, `yes` and `no`, and returns its folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*letters, "no", "ye", "yes"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("n", "o"), ("y", "e"), ("ye", "s")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    fast.save_pretrained(folder / "reranker")
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2048,
        initializer_range=0.4,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder / "reranker")
    return folder / "reranker"
