"""Adapters: an ordinary model around the training, exact checkpoints, and the start model still inside."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from module_fakes import PASSAGES, QUESTIONS, ListData, ListLoader
from test_policy_module import EXAMPLES

from rpl.cli.main import main
from rpl.core.errors import CheckpointError, ConfigError, MissingDependencyError
from rpl.modules.batches.logprobs import score_tokens
from rpl.modules.batches.micro_batches import TrainingSequence, micro_batches
from rpl.policy.loading import export_policy, load_policy
from rpl.policy.weights.consolidate import read_checkpoint
from rpl.policy.weights.lora import LoRAConfig, adapters_off, add_lora, has_lora, linear_names
from rpl.policy.weights.merged import policy_weights
from rpl.policy.weights.sharding import full_model
from rpl.sampling.hf.sampler import HFSampler
from rpl.sampling.sampler import SamplingParams
from rpl.sampling.single_turn import complete

IDS = torch.tensor([[5, 9, 40, 77, 3, 100]])


@pytest.fixture
def adapted():
    """A model whose adapters have been moved from their start, and its start model."""
    model, _ = load_policy("tiny")
    start = copy.deepcopy(model)
    add_lora(model, LoRAConfig(rank=4), seed=1)
    shake(model)
    return model, start


def shake(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(7))


def fit(module, trainer, ckpt_path=None):
    trainer.fit(module, datamodule=ListData(ListLoader(EXAMPLES, 3)), ckpt_path=ckpt_path)


def test_new_adapters_change_nothing_and_alone_are_trained():
    model, _ = load_policy("tiny")
    before = model(IDS).logits
    kind = type(model)
    add_lora(model, LoRAConfig(rank=4, base_dtype="float32"))
    assert type(model) is kind
    assert torch.equal(model(IDS).logits, before)
    assert all(("lora_" in name) == p.requires_grad for name, p in model.named_parameters())
    # two matrices of rank 4 at each of seven linear layers in each of two decoder layers
    assert sum(p.requires_grad for p in model.parameters()) == 2 * 7 * 2


def test_adapters_go_where_they_are_told_and_start_alike_from_one_seed():
    weights = []
    for seed in (3, 3, 4):
        model, _ = load_policy("tiny")
        add_lora(model, LoRAConfig(target_modules=("q_proj", "v_proj")), seed=seed)
        weights.append({n: p.detach() for n, p in model.named_parameters() if p.requires_grad})
    assert all(".q_proj." in name or ".v_proj." in name for name in weights[0])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "model.lora.rank must be at least 1"),
        ({"alpha": 0.0}, "model.lora.alpha must be positive"),
        ({"dropout": 1.0}, r"model.lora.dropout must be in \[0, 1\)"),
        ({"target_modules": ()}, "model.lora.target_modules is empty"),
        ({"base_dtype": "float16"}, "model.lora.base_dtype must be float32 or bfloat16"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        LoRAConfig(**settings)


@pytest.mark.parametrize("name", ["w_proj", "lm_head", "embed_tokens"])
def test_targets_are_linear_layers_of_the_decoder(name):
    model, _ = load_policy("tiny")
    with pytest.raises(ConfigError, match=f"no linear layer {name} in its decoder; it has down_proj, .*v_proj"):
        add_lora(model, LoRAConfig(target_modules=("q_proj", name)))
    assert not has_lora(model)
    assert "lm_head" not in linear_names(model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_weights_are_those_of_peft_and_leave_the_model_alone(dtype):
    from peft import LoraConfig, LoraModel

    model, _ = load_policy("tiny", dtype)
    settings = LoraConfig(r=4, lora_alpha=32, target_modules=linear_names(model), bias="none")
    reference = LoraModel(copy.deepcopy(model), settings, "default")
    add_lora(model, LoRAConfig(rank=4, alpha=32, base_dtype=dtype))
    shake(model)
    ours = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in reference.model.named_parameters():
            if "lora_" in name:
                parameter.data = ours[name].clone()  # peft itself keeps adapters in float32 from one level further up
    before = {name: value.clone() for name, value in model.state_dict().items()}
    merged = dict(policy_weights(model))
    expected = dict(reference.merge_and_unload().named_parameters(remove_duplicate=False))
    assert merged.keys() == expected.keys()
    assert all(torch.equal(merged[name].to(value.dtype), value) for name, value in expected.items())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    unmerged = {name.replace(".base_layer.", "."): value for name, value in before.items()}
    assert not all(torch.equal(merged[name].to(unmerged[name].dtype), unmerged[name]) for name in merged)


def test_a_model_without_adapters_is_its_own_policy_weights():
    model, _ = load_policy("tiny")
    merged = dict(policy_weights(model))
    assert merged.keys() == model.state_dict().keys()
    assert all(torch.equal(merged[name], value) for name, value in model.named_parameters())


def test_with_adapters_off_the_start_model_computes(adapted):
    model, start = adapted
    trained = model(IDS).logits
    with adapters_off(model):
        assert torch.equal(model(IDS).logits, start(IDS).logits)
    assert torch.equal(model(IDS).logits, trained)
    assert not torch.equal(trained, start(IDS).logits)
    assert all(("lora_" in name) == p.requires_grad for name, p in model.named_parameters())


def test_adapters_over_bfloat16_weights_are_float32_and_exported_unrounded(tmp_path):
    model, tokenizer = load_policy("tiny", "bfloat16")
    add_lora(model, LoRAConfig(rank=4, base_dtype="bfloat16"))
    shake(model)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    merged = dict(policy_weights(model))
    export_policy(full_model(model), tokenizer, tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")[0].state_dict()
    assert all(torch.equal(loaded[name], value.float()) for name, value in merged.items())
    rounded = {name: value.bfloat16().float() for name, value in merged.items()}
    assert not all(torch.equal(loaded[name], value) for name, value in rounded.items())


@pytest.mark.parametrize("base_dtype", ["float32", "bfloat16"])
def test_training_moves_the_adapters_and_exports_an_ordinary_model(base_dtype, make_sft, make_trainer, tmp_path):
    module = make_sft(lora=LoRAConfig(rank=4, base_dtype=base_dtype))
    trainer, recorder = make_trainer(6, limit_val_batches=0)
    fit(module, trainer)
    assert recorder.rows[-1]["train/loss"] < recorder.rows[0]["train/loss"]
    module.export_policy(tmp_path / "policy")
    loaded, _ = load_policy(tmp_path / "policy")
    assert not has_lora(loaded)
    merged = dict(policy_weights(module.model))
    assert all(torch.equal(loaded.state_dict()[name], value.float()) for name, value in merged.items())
    start, _ = load_policy("tiny")
    assert not torch.equal(loaded.model.layers[0].mlp.up_proj.weight, start.model.layers[0].mlp.up_proj.weight)
    assert torch.equal(
        loaded.model.embed_tokens.weight, start.model.embed_tokens.weight.to(getattr(torch, base_dtype)).float()
    )


def test_the_gradient_of_an_adapter_is_that_of_the_weight_times_the_other(make_sft):
    """dB = scale * dW Aᵀ and dA = scale * Bᵀ dW: the chain rule on W + scale * B A."""
    module = make_sft(lora=LoRAConfig(rank=4))
    module.configure_model()
    shake(module.model)
    full = full_model(module.model)
    for model in (module.model, full):
        model.train()
        model(IDS, labels=IDS).loss.backward()
    layer = module.model.model.layers[1].mlp.down_proj
    weight = full.model.layers[1].mlp.down_proj.weight.grad
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    torch.testing.assert_close(up.grad, 8.0 * weight @ down.T, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(down.grad, 8.0 * up.T @ weight, rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(down.grad, up.T @ weight, rtol=1e-4, atol=1e-5)


def test_checkpoints_hold_adapters_only_and_resume_exactly(make_sft, make_trainer, tmp_path):
    lora = LoRAConfig(rank=4, dropout=0.0)
    trainer, whole = make_trainer(4, limit_val_batches=0)
    fit(make_sft(lora=lora), trainer)
    trainer, _ = make_trainer(2, limit_val_batches=0)
    fit(make_sft(lora=lora), trainer)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    saved = torch.load(tmp_path / "two.ckpt", weights_only=True)
    assert saved["state_dict"]
    assert all("lora_" in name for name in saved["state_dict"])
    trainer, rest = make_trainer(4, limit_val_batches=0)
    fit(make_sft(lora=lora), trainer, ckpt_path=tmp_path / "two.ckpt")
    assert rest.rows == whole.rows[2:]
    trainer, other = make_trainer(4, limit_val_batches=0)
    fit(make_sft(lora=LoRAConfig(rank=4, alpha=16)), trainer, ckpt_path=tmp_path / "two.ckpt")
    assert other.rows[0]["train/loss"] != whole.rows[2]["train/loss"]


def test_adapters_are_refused_on_another_start_model(make_sft, make_trainer, tmp_path):
    trainer, _ = make_trainer(1, limit_val_batches=0)
    module = make_sft(lora=LoRAConfig(rank=4))
    fit(module, trainer)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    module.export_policy(tmp_path / "other")
    trainer, _ = make_trainer(2, limit_val_batches=0)
    with pytest.raises(CheckpointError, match="trained on 'tiny', whose weights are not those of"):
        fit(make_sft(lora=LoRAConfig(rank=4), init_from=str(tmp_path / "other")), trainer, tmp_path / "one.ckpt")
    trainer, _ = make_trainer(2, limit_val_batches=0)
    with pytest.raises(CheckpointError, match=r"does not hold the adapters of model\.lora"):
        fit(make_sft(lora=LoRAConfig(rank=4, target_modules=("q_proj",))), trainer, tmp_path / "one.ckpt")


@pytest.mark.parametrize("lora", [None, LoRAConfig(rank=4)], ids=["full", "lora"])
def test_rpl_export_writes_what_the_module_would(lora, make_sft, make_trainer, tmp_path, capsys):
    module = make_sft(lora=lora)
    trainer, _ = make_trainer(2, limit_val_batches=0)
    fit(module, trainer)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    module.export_policy(tmp_path / "direct")
    main(["export", str(tmp_path / "two.ckpt"), "--out", str(tmp_path / "exported")])
    direct, exported = (load_policy(tmp_path / name)[0].state_dict() for name in ("direct", "exported"))
    assert direct.keys() == exported.keys()
    assert all(torch.equal(direct[name], value) for name, value in exported.items())
    start = load_policy("tiny")[0].state_dict()
    assert not all(torch.equal(start[name], value) for name, value in exported.items())


def test_rpl_export_names_what_is_wrong(make_sft, make_trainer, tmp_path, capsys):
    with pytest.raises(CheckpointError, match="not a checkpoint of RPL: the folder has no"):
        read_checkpoint(tmp_path)
    (tmp_path / "junk.ckpt").write_text("junk")
    with pytest.raises(CheckpointError, match="not a checkpoint of RPL"):
        read_checkpoint(tmp_path / "junk.ckpt")
    module = make_sft(lora=LoRAConfig(rank=4))
    trainer, _ = make_trainer(1, limit_val_batches=0)
    fit(module, trainer)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    module.export_policy(tmp_path / "other")
    command = ["export", str(tmp_path / "one.ckpt"), "--out", str(tmp_path / "x")]
    with pytest.raises(SystemExit):
        main([*command, "--start_model", str(tmp_path / "other")])
    assert "trained on 'tiny'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_grpo_with_adapters_learns_from_rollouts(make_grpo, make_trainer):
    assert PASSAGES
    module = make_grpo(lora=LoRAConfig(rank=4))
    module.configure_model()
    before = {name: p.detach().clone() for name, p in module.model.named_parameters()}
    trainer, recorder = make_trainer(2, limit_val_batches=0)
    trainer.fit(module, datamodule=ListData(ListLoader(QUESTIONS, 3)))
    moved = {name for name, p in module.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    assert recorder.rows[0]["train/grad_norm"] > 0


def test_the_start_model_of_the_kl_term_is_the_policy_without_its_adapters(make_grpo, make_trainer):
    module = make_grpo(lora=LoRAConfig(rank=4), beta=0.1)
    trainer, recorder = make_trainer(3, limit_val_batches=0)
    trainer.fit(module, datamodule=ListData(ListLoader(QUESTIONS, 3)))
    assert not module._reference
    assert recorder.rows[0]["train/kl"] == pytest.approx(0.0, abs=1e-6)
    assert recorder.rows[-1]["train/kl"] > 1e-4
    row = TrainingSequence(tuple(IDS[0].tolist()), (False, False, True, True, True, True))
    (batch,) = micro_batches([row], 1000)
    start, _ = load_policy("tiny")
    expected, _ = score_tokens(start, batch)
    assert torch.equal(module.reference_logprobs(batch), expected.detach())
    assert not torch.equal(module.token_logprobs(batch)[0].detach(), expected.detach())


def test_the_built_in_sampler_draws_from_the_adapted_model(make_sft):
    module = make_sft(lora=LoRAConfig(rank=4))
    module.configure_model()
    shake(module.model)
    sampler = HFSampler()
    sampler.connect(module.model, module.policy_model.tokenizer)
    prompt = IDS[0].tolist()
    (drawn,) = complete(sampler, [prompt], [3], SamplingParams(max_new_tokens=12, stop=()), batch_size=1)
    ids = (*prompt, *drawn.token_ids)
    (batch,) = micro_batches([TrainingSequence(ids, tuple(i >= len(prompt) for i in range(len(ids))))], 1000)
    ours = module.token_logprobs(batch)[0].detach()
    assert drawn.logprobs == pytest.approx(ours.tolist(), abs=1e-4)
    with adapters_off(module.model):
        assert drawn.logprobs != pytest.approx(module.token_logprobs(batch)[0].tolist(), abs=1e-4)


def test_dropout_is_for_sft_only(make_grpo, make_sft):
    assert make_sft(lora=LoRAConfig(dropout=0.1)).policy_model.lora.dropout == 0.1
    with pytest.raises(ConfigError, match=r"model\.lora\.dropout must be 0 in RL, got 0\.1"):
        make_grpo(lora=LoRAConfig(dropout=0.1))


def test_lora_is_set_in_yaml_and_by_flags(tmp_path):
    from rpl.training.lightning_cli import RPLCLI

    folder = Path(__file__).parents[2] / "configs"
    patch = tmp_path / "lora.yaml"
    patch.write_text("model: {init_args: {lora: {rank: 8, target_modules: [q_proj, v_proj]}}}\n")
    files = ["-c", str(folder / "base.yaml"), "-c", str(folder / "rl.yaml"), "-c", str(folder / "tiny.yaml")]
    files += ["--trainer.logger.save_dir", str(tmp_path), "--trainer.default_root_dir", str(tmp_path)]
    cli = RPLCLI([*files, "-c", str(patch), "--model.lora.alpha", "8"], run=False)
    assert cli.model.policy_model.lora == LoRAConfig(rank=8, alpha=8.0, target_modules=("q_proj", "v_proj"))
    assert RPLCLI(files, run=False).model.policy_model.lora is None


def test_without_peft_the_install_line_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingDependencyError, match=r"model\.lora needs peft: pip install '.*\[lora\]'"):
        add_lora(torch.nn.Linear(2, 2), LoRAConfig())
