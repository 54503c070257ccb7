"""Policies of every architecture: an estimate where there is one, and never a traceback."""

import json
from pathlib import Path

import pytest
import transformers

from rpl.cli.main import main
from rpl.core.errors import CheckpointError
from rpl.estimate.shapes import NoEstimateError, size_of
from rpl.policy.loading import load_policy

FOLDER = Path(__file__).parents[2] / "configs"
TINY = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**TINY, "intermediate_size": 64, "num_key_value_heads": 2}
UNDESCRIBED = {
    "GPT2": {"vocab_size": 200, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "Mamba": {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "GPTNeoX": {**TINY, "intermediate_size": 64},
    "OPT": {**TINY, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "Bloom": {"vocab_size": 200, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "Qwen3Moe": {**LLAMA, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
}


def saved(kind, folder, **settings):
    getattr(transformers, f"{kind}Config")(**settings).save_pretrained(folder)
    return str(folder)


def doctor(policy, capsys, *flags):
    files = [part for name in ("base", "rl", "tiny") for part in ("-c", str(FOLDER / f"{name}.yaml"))]
    main(["doctor", *files, "--model.policy", policy, "--tflops", "0.1", *flags])
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", UNDESCRIBED)
def test_other_layers_have_a_time_and_no_memory(kind, tmp_path, capsys):
    policy = saved(kind, tmp_path / kind, **UNDESCRIBED[kind])
    size = size_of(policy)
    assert size.shape is None
    assert 0 < size.cost.body < size.parameters
    out = doctor(policy, capsys)
    assert f"memory of one process: no estimate for this architecture ({kind}" in out
    assert "s an iteration" in out
    assert json.loads(doctor(policy, capsys, "--json"))["peak_bytes"] is None


@pytest.mark.parametrize("kind", ["Llama", "Qwen3", "Mistral", "Qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_gated_decoders_are_described(kind, tied, tmp_path):
    size = size_of(saved(kind, tmp_path / kind, **{**LLAMA, "head_dim": 8}, tie_word_embeddings=tied))
    assert size.shape is not None
    assert size.cost == size.shape.token_cost
    matrices = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    assert (size.cost.body, size.cost.head) == (matrices, 200 * 32)


def test_what_cannot_be_built_is_said_and_not_raised(tmp_path, capsys):
    policy = saved("GPT2", tmp_path / "odd", vocab_size=200, n_embd=30, n_layer=2, n_head=4)
    with pytest.raises(NoEstimateError, match="no estimate for this architecture"):
        size_of(policy)
    assert doctor(policy, capsys).startswith("no estimate for this architecture")
    assert json.loads(doctor(policy, capsys, "--json"))["estimate"] is None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("T5", "T5Config is an encoder-decoder"),
        ("Bart", "BartConfig is an encoder-decoder"),
        ("ViT", "ViTConfig is no causal"),
        ("DistilBert", "DistilBertConfig is no causal"),
    ],
)
def test_what_can_be_no_policy_is_refused_by_name(kind, message, tmp_path):
    policy = saved(kind, tmp_path / "other")
    for use in (size_of, load_policy):
        with pytest.raises(CheckpointError, match=message) as raised:
            use(policy)
        assert "\n" not in str(raised.value)
