"""The arithmetic of estimates, against what PyTorch allocates and what is known of real models."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from rpl.cli.commands.estimating import describe, estimate
from rpl.core.errors import CheckpointError, ConfigError
from rpl.estimate.shapes import size_of
from rpl.estimate.training import (
    GIB,
    ModelShape,
    Settings,
    Workload,
    activation_bytes,
    memory,
    micro_batch,
    peaks,
    seconds,
)

QWEN3_4B = {
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
SHAPE = ModelShape(
    parameters=1_000_000, vocab=1000, hidden=64, intermediate=128, layers=4, heads=4, kv_heads=2, head_dim=16
)
WORK = Workload(questions=4, group_size=8, prompt=50, written=60, shown=90, rows=16)
PLAIN = Settings()
FOLDER = Path(__file__).parents[2] / "configs"


def files(*names):
    return [part for name in names for part in ("-c", str(FOLDER / f"{name}.yaml"))]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A folder with the configuration of Qwen3-4B and nothing else."""
    from transformers import Qwen3Config

    folder = tmp_path_factory.mktemp("qwen")
    Qwen3Config(**QWEN3_4B).save_pretrained(folder)
    return str(folder)


def amounts(shape=SHAPE, settings=PLAIN, work=WORK):
    return {part.name: part.amount for part in memory(shape, settings, work)}


def kept_by_autograd(kind, mixed, packed, layers):
    """Bytes that autograd keeps when a micro-batch is scored, parameters apart, and the computed tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    from rpl.modules.batches.logprobs import score_tokens
    from rpl.modules.batches.micro_batches import TrainingSequence, micro_batches

    config, model_class = (LlamaConfig, LlamaForCausalLM) if kind == "llama" else (Qwen3Config, Qwen3ForCausalLM)
    dims = {"hidden_size": 144, "intermediate_size": 384, "num_attention_heads": 9, "num_key_value_heads": 3}
    extra = {"head_dim": 32} if kind == "qwen3" else {}
    model = model_class(config(vocab_size=200, num_hidden_layers=layers, **dims, **extra)).train()
    prompt, generator = tuple(range(10, 50)), torch.Generator().manual_seed(0)
    rows = [
        TrainingSequence(
            prompt + tuple(torch.randint(0, 200, (130,), generator=generator).tolist()),
            (False,) * 100 + (True,) * 70,
            sampler_logprobs=(0.0,) * 170,
        )
        for _ in range(6)
    ]
    (batch,) = micro_batches(rows, 10**6, 0, packed)
    kept = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that its address is not used again
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=mixed, cache_enabled=False),
    ):
        score_tokens(model, batch)
    return sum(size for size, _ in kept.values()), batch.packing.num_tokens if packed else batch.input_ids.numel()


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_activations_are_those_that_autograd_keeps(kind, mixed, packed):
    (two, tokens), (four, _) = (kept_by_autograd(kind, mixed, packed, layers) for layers in (2, 4))
    q = 9 * (32 if kind == "qwen3" else 16)
    shape = dataclasses.replace(
        SHAPE, hidden=144, intermediate=384, heads=9, kv_heads=3, head_dim=q // 9, qk_norm=kind == "qwen3"
    )
    measured = (four - two) / 2 - (
        2 * shape.layer_parameters if mixed else 0
    )  # the cast weights are a part of their own
    assert activation_bytes(shape, mixed, packed, 40, 130) * tokens == pytest.approx(measured, rel=0.06)
    # the twin that must fail: without the MLP's four tensors
    short = dataclasses.replace(shape, intermediate=0)
    assert activation_bytes(short, mixed, packed, 40, 130) * tokens != pytest.approx(measured, rel=0.06)


def test_parameters_are_counted_from_the_configuration_alone(qwen):
    shape = size_of(qwen).shape
    assert shape.parameters == 4_022_468_096  # as the model card of Qwen3-4B: 4.0 billion, 3.6 without embeddings
    assert shape.parameters - shape.vocab * shape.hidden == pytest.approx(3.6e9, rel=0.02)
    assert (shape.queries, shape.keys, shape.qk_norm) == (4096, 1024, True)
    assert shape.layers * shape.layer_parameters + shape.vocab * shape.hidden == pytest.approx(
        shape.parameters, rel=1e-3
    )


def test_adapters_are_counted_as_they_are_built(qwen):
    from rpl.policy.loading import load_policy
    from rpl.policy.weights.lora import LoRAConfig, add_lora

    for config in (LoRAConfig(rank=4), LoRAConfig(rank=8, target_modules=("q_proj", "down_proj"))):
        model, _ = load_policy("tiny")
        add_lora(model, config)
        assert size_of("tiny", config).shape.lora == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert size_of(qwen, LoRAConfig(rank=64)).shape.lora == 132_120_576


def test_states_are_four_copies_and_shrink_with_shards():
    one = amounts()
    assert one["weights"] == one["gradients"] == 4_000_000
    assert one["optimizer state"] == 8_000_000
    assert "reference model" not in one
    assert amounts(settings=Settings(reference=True))["reference model"] == 4_000_000
    four = amounts(settings=Settings(devices=4, sharded=True))
    assert four["weights"] == four["gradients"] == 1_000_000
    assert four["gathered model"] == 4_000_000
    assert amounts(settings=Settings(devices=4))["weights"] == 4_000_000
    assert amounts(settings=Settings(devices=4, sharded=True, mixed=True))["gathered model"] == 2_000_000


def test_adapters_have_the_only_gradients():
    parts = amounts(dataclasses.replace(SHAPE, lora=1000), Settings(frozen_bytes=2, reference=True))
    assert parts["frozen weights"] == 2_000_000
    assert parts["adapters"] == parts["gradients"] == 4000
    assert parts["optimizer state"] == 8000
    assert "reference model" not in parts  # the same model with its adapters off


def test_activations_logits_and_cache_by_hand():
    each = activation_bytes(SHAPE, mixed=False, packed=False, prompt=50, transcript=150)
    assert each == 4 * (6 * 64 + 2 * 64 + 2 * 32 + 4 * 128)
    plain = Settings(packed=False, tokens_per_micro_batch=1100, logprob_chunk_tokens=30)
    assert amounts(settings=plain)["activations"] == 1000 * 5 * each  # five whole rows of 200 fit
    assert amounts(settings=plain)["logits"] == 30 * 1000 * 16
    # each row has 60 tokens of the policy's own
    assert amounts(settings=dataclasses.replace(plain, logprob_chunk_tokens=1024))["logits"] == 300 * 1000 * 16
    again = dataclasses.replace(plain, checkpointing=True)
    assert amounts(settings=again)["activations"] == 1000 * (4 * 4 * 64 + 2 * each)
    assert amounts()["key-value cache"] == 16 * 200 * 4 * 2 * 32 * 4
    assert amounts(work=dataclasses.replace(WORK, rows=999))["key-value cache"] == 32 * 200 * 4 * 2 * 32 * 4
    assert "key-value cache" not in amounts(settings=Settings(engine_bytes=7))
    assert amounts(settings=Settings(engine_bytes=7))["sampling engine"] == 7


def test_a_micro_batch_holds_whole_transcripts_and_a_prompt_once():
    def tokens(budget, packed=True, **changes):
        settings = Settings(packed=packed, tokens_per_micro_batch=budget)
        return micro_batch(settings, dataclasses.replace(WORK, **changes))

    assert tokens(1100, packed=False) == (1000, 300)
    assert tokens(1100) == (50 + 7 * 150, 7 * 60)
    assert tokens(10) == (50 + 150, 60)
    assert tokens(10**6) == (50 + 32 * 150, 32 * 60)
    assert tokens(10**6, updates=4) == (50 + 8 * 150, 8 * 60)
    assert tokens(1100, group_size=1, questions=99) == (1000, 300)


def test_phases_are_added_up_apart():
    parts = memory(SHAPE, Settings(), WORK)
    found = peaks(parts)
    sizes = {part.name: part.amount for part in parts}
    assert found["update"] == pytest.approx(sum(sizes.values()) - sizes["key-value cache"] - sizes["next-token logits"])
    update = ("activations", "attention masks", "logits", "allocator", "gradients")
    assert found["sample"] == pytest.approx(sum(sizes.values()) - sum(sizes[name] for name in update))
    sft = peaks(memory(SHAPE, Settings(), dataclasses.replace(WORK, samples=False)))
    assert sft["update"] == found["update"]


def test_time_counts_tokens_and_skips_what_costs_nothing():
    def part(name, settings=PLAIN, **changes):
        parts = seconds(SHAPE.token_cost, settings, dataclasses.replace(WORK, **changes), 1e9)
        return {p.name: p.amount for p in parts}[name]

    assert part("decode", group_size=16) == pytest.approx(2 * part("decode"))
    # prompts are read once a group: only the results double
    assert part("prefill", group_size=16) / part("prefill") == pytest.approx((4 * 50 + 64 * 90) / (4 * 50 + 32 * 90))
    assert part("update", kept=0.5) == pytest.approx(part("update") / 2)
    assert part("update", kept=0.0) == 0
    rows, prompts = 4 * 8 * (60 + 90), 4 * 50
    half = part("update", different=0.5) / part("update")
    assert half == pytest.approx((prompts + rows / 2) / (prompts + rows), rel=0.05)  # logits have a share of their own
    assert part("update", settings=Settings(packed=False)) > part("update")
    assert part("update", settings=Settings(checkpointing=True)) == pytest.approx(4 / 3 * part("update"))
    assert part("update", settings=Settings(reference=True)) == pytest.approx(4 / 3 * part("update"))
    assert part("update", updates=2) == pytest.approx(4 / 3 * part("update"))
    assert [p.name for p in seconds(SHAPE.token_cost, Settings(), dataclasses.replace(WORK, samples=False), 1e9)] == [
        "update"
    ]


def test_impossible_work_is_refused():
    with pytest.raises(ConfigError, match="group_size must be at least 1"):
        Workload(questions=1, group_size=0)
    with pytest.raises(ConfigError, match="kept must be in"):
        Workload(questions=1, kept=1.5)
    with pytest.raises(ConfigError, match="different must be in"):
        Workload(questions=1, different=-0.1)


def test_the_published_protocol_on_eight_gpus(qwen):
    flags = [*files("base", "rl", "fsdp", "qwen3_4b"), "--trainer.devices", "8", "--model.policy", qwen]
    result = estimate([*flags, "--tflops", "600", "--device_memory", "80"])
    assert (result.settings.devices, result.settings.sharded, result.settings.mixed) == (8, True, True)
    assert (result.work.questions, result.work.group_size, result.work.updates) == (64, 5, 2)
    assert result.iterations == 500
    assert result.peak < 80 * GIB
    text = describe(result)
    assert "80 GiB are there: fits" in text
    assert "4,022,468,096 x 4 B / 8" in text
    one = estimate([*flags, "--trainer.devices", "1", "--device_memory", "80"])
    assert "DOES NOT FIT" in describe(one)
    assert one.iteration_s is None or torch.cuda.is_available()


def test_doctor_prints_it_and_needs_both_files(capsys, tmp_path):
    from rpl.cli.main import main

    command = ["doctor", *files("base", "rl", "tiny"), "--tflops", "0.1", "--written", "20", "--json"]
    main(command)
    out = json.loads(capsys.readouterr().out)
    assert out["work"]["written"] == 20
    assert out["peak_bytes"] > out["size"]["parameters"] * 16
    with pytest.raises(SystemExit):
        main(["doctor", *files("base")])
    assert "exactly one task file" in capsys.readouterr().err


def test_a_policy_that_is_nowhere_is_named():
    with pytest.raises(CheckpointError, match=r"policy 'no/such': its config\.json cannot be had"):
        size_of("no/such")
