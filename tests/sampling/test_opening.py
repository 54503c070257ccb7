"""Harvest, evaluation and `rpl ask` sample on the device, in the precision and with the sampler that is configured."""

import pytest
import torch
from module_fakes import ScriptedSampler

from rpl.core.errors import ConfigError
from rpl.core.machine import fastest_precision
from rpl.sampling.hf.sampler import HFSampler
from rpl.sampling.opening import OpeningConfig, choose_device, open_policy
from rpl.sampling.vllm.sampler import VLLMSampler
from rpl.schedule.sampling_settings import configured_opening


def test_the_configured_sampler_is_connected_and_used():
    sampler = ScriptedSampler()
    opened = open_policy("tiny", opening=OpeningConfig(sampler=sampler))
    assert opened.sampler is sampler
    assert sampler.tokenizer is opened.renderer.tokenizer
    assert opened.identity["sampler"] == "ScriptedSampler"


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_the_precision_is_that_of_the_settings(dtype):
    opened = open_policy("tiny", opening=OpeningConfig("cpu", dtype))
    expected = fastest_precision("cpu").dtype if dtype == "auto" else dtype
    assert isinstance(opened.sampler, HFSampler)
    assert opened.sampler.dtype == opened.identity["sampling_dtype"] == expected


def test_the_model_is_put_on_the_device(monkeypatch):
    monkeypatch.setattr("rpl.sampling.opening.choose_device", lambda name: {"cuda:1": "meta"}[name])
    opened = open_policy("tiny", opening=OpeningConfig("cuda:1", sampler=ScriptedSampler()))
    assert next(opened.model.parameters()).device.type == "meta"


def test_auto_is_a_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("auto") == choose_device("cuda") == "cuda"
    assert choose_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="'cuda:1': this machine has 1 GPUs"):
        choose_device("cuda:1")


def test_devices_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="'cuda': this machine has 0 GPUs"):
        choose_device("cuda")
    for name in ("gpu", "meta"):
        with pytest.raises(ConfigError, match="allowed are auto, cpu, cuda and cuda:N"):
            choose_device(name)


def test_a_schedule_samples_as_its_training_does(tmp_path):
    base, rl = tmp_path / "base.yaml", tmp_path / "rl.yaml"
    base.write_text("trainer: {accelerator: gpu, precision: 32-true}\n")
    sampler = "{class_path: rpl.sampling.vllm.sampler.VLLMSampler, init_args: {server_urls: [http://x:1], stride: 4}}"
    rl.write_text(f"trainer: {{precision: bf16-mixed}}\nmodel: {{init_args: {{sampler: {sampler}}}}}\n")
    opening = configured_opening({}, {}, [base, rl])
    assert (opening.device, opening.dtype) == ("cuda", "bfloat16")
    assert isinstance(opening.sampler, VLLMSampler)
    assert opening.sampler.stride == 4
    over = configured_opening({"accelerator": "cpu", "precision": "auto"}, {"sampler": None}, [base, rl])
    assert over == OpeningConfig("cpu", "auto", None)
    with pytest.raises(ConfigError, match=r"model\.sampler: "):
        configured_opening({}, {"sampler": {"class_path": "no.such.Sampler"}}, [])
