"""Where policies come from: names become folders, folders become models, models become folders again.

Every policy is an ordinary Hugging Face folder (config, safetensors, tokenizer with chat template).
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rpl.core.errors import CheckpointError, ConfigError
from rpl.core.files import cache_dir, unwritable
from rpl.core.machine import use_threads_for
from rpl.policy import smollm2, tiny
from rpl.policy.limits import check_causal, check_vocabulary

DTYPES = ("float32", "bfloat16", "float16")
HUB_TIMEOUT_S = 4.0
"""How long the hub may take to say whether it has a model."""

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PAD_CANDIDATES = ("<|endoftext|>", "<|finetune_right_pad_id|>", "<pad>", "[PAD]", "<|pad|>", "<unk>")


def resolve_model(name: str, cache: Path | None = None) -> Path:
    """Finds or makes the model folder that a name stands for.

    Tried in this order: a local folder; `tiny` (a small random model, for tests); the local Hugging Face cache; for
    SmolLM2-135M-Instruct a copy converted earlier; the hub; and, for SmolLM2-135M-Instruct where no hub answers, the
    Python package that carries its weights.

    Args:
        name: A folder, `tiny`, `smollm2-135m`, or a hub name such as `Qwen/Qwen3-0.6B`.
        cache: Where built models are kept; `cache_dir()/models` by default.

    Raises:
        ConfigError: The name is neither a folder nor of the form of a hub name.
        CheckpointError: The folder holds no model, or the model can be found nowhere; the message says what was tried.
    """
    cache = cache or cache_dir() / "models"
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{folder}: not a model folder (no config.json)")
        return folder
    if name == "tiny":
        return tiny.tiny_model(cache)
    is_smollm2 = name.lower() in smollm2.NAMES
    hub_name = smollm2.HUB_NAME if is_smollm2 else name
    if not _HUB_NAME.fullmatch(hub_name) or name.startswith((".", "/", "~")):
        raise ConfigError(
            f"model {name!r}: no such folder, and not a known name; allowed are a model folder, 'tiny', "
            f"'smollm2-135m' or a hub name like 'Qwen/Qwen3-0.6B'"
        )
    if (cached := _cached_snapshot(hub_name)) is not None:
        return cached
    if is_smollm2 and (converted := smollm2.converted(cache)) is not None:
        return converted
    downloaded, reason = _download_snapshot(hub_name)
    if downloaded is not None:
        return downloaded
    if is_smollm2:
        return smollm2.convert(cache, reason)
    raise CheckpointError(
        f"model {name!r}: no such folder, not in the local Hugging Face cache, and not on the hub ({reason}). "
        f"Give a folder, or download it where there is a network: hf download {hub_name}"
    )


def load_policy(name: str | Path, dtype: str = "float32", attention: str = "sdpa") -> tuple[Any, Any]:
    """Loads a causal language model and its tokenizer.

    Args:
        name: Whatever `resolve_model` accepts.
        dtype: `float32`, `bfloat16` or `float16`: the type the weights are held in.
        attention: A name known to transformers (`sdpa`, `eager`, `flash_attention_2`), or `rpl_gqa`.

    Returns:
        The model, in evaluation mode on the CPU, and a fast tokenizer whose padding token differs from its
        end-of-turn token wherever the vocabulary allows.

    Raises:
        ConfigError: `dtype` or `attention` is unknown.
        CheckpointError: The model is missing, damaged or no causal language model, or its tokenizer has no chat
            template, or ids outside of the embedding.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # bars of a second each would bury those of long work
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r}: allowed are {', '.join(DTYPES)}")
    if attention == "rpl_gqa":
        from rpl.policy.attention import register

        register()
    folder = resolve_model(str(name))
    try:
        check_causal(AutoConfig.from_pretrained(folder), folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation=attention, output_loading_info=True
        )
    except (ImportError, ValueError) as error:
        if "attn_implementation" in str(error) or "attention" in str(error).lower():
            raise ConfigError(f"attention {attention!r} cannot be used with {folder}: {error}") from error
        raise CheckpointError(f"{folder}: cannot be loaded: {error}") from error
    except (OSError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot be loaded: {error}") from error
    model, report = loaded
    # transformers fills weights that are not in the file with random numbers and only warns.
    if absent := sorted([*report["missing_keys"], *(str(key[0]) for key in report["mismatched_keys"])]):
        raise CheckpointError(f"{folder}: {len(absent)} weights are missing or of another shape, such as {absent[0]}")
    if not tokenizer.chat_template:
        raise CheckpointError(f"{folder}: the tokenizer has no chat template; a policy needs one")
    if tokenizer.eos_token_id is None:
        raise CheckpointError(f"{folder}: the tokenizer has no end-of-sequence token; a policy needs one")
    check_vocabulary(model, tokenizer, folder)
    choose_padding(tokenizer)
    use_threads_for(model.num_parameters())
    model.config.pad_token_id = tokenizer.pad_token_id
    if model.generation_config is not None:
        model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval(), tokenizer


def choose_padding(tokenizer: Any) -> None:
    """Gives a tokenizer a padding token other than its end token, if its vocabulary has one to spare.

    Where padding is the end token, code that masks padding also masks the token that ends a turn, and a model
    trained that way never learns to stop.
    """
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id != tokenizer.eos_token_id:
        return
    vocabulary = tokenizer.get_vocab()
    for token in _PAD_CANDIDATES:
        if token in vocabulary and token != tokenizer.eos_token:
            tokenizer.pad_token = token
            return
    tokenizer.pad_token = tokenizer.eos_token


def export_policy(model: Any, tokenizer: Any, out: Path, extra: Mapping[str, str] | None = None) -> Path:
    """Writes model and tokenizer as a Hugging Face folder that appears under its name only when complete.

    Args:
        model: A transformers model, on any device, unsharded.
        tokenizer: Its tokenizer.
        out: The folder; an earlier one of this name is replaced.
        extra: Text files to put into it, by name, such as `rpl.json`.

    Returns:
        `out`.

    Raises:
        CheckpointError: It cannot be written, as where the disk is full. An earlier folder of this name is as it was.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for name, text in (extra or {}).items():
            (temporary / name).write_text(text, encoding="utf-8")
        os.chmod(temporary, 0o755)
        put_folder(temporary, out)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{out}: the model folder cannot be written: {unwritable(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out


def put_folder(temporary: Path, out: Path) -> None:
    """Renames a finished folder into place, moving an earlier one out of the way first."""
    if not out.exists():
        os.replace(temporary, out)
        return
    old = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.old."))
    os.replace(out, old)
    os.replace(temporary, out)
    shutil.rmtree(old)


def _cached_snapshot(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    complete = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    return folder if complete else None


def _download_snapshot(name: str) -> tuple[Path | None, str]:
    """Returns the folder, or `None` and the reason."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except HfHubHTTPError as error:
        return None, f"the hub says: {str(error).strip().splitlines()[0]}"
    except Exception as error:  # the HTTP library's own classes, which differ between hub versions
        return None, f"the hub does not answer: {type(error).__name__}: {error}"
    patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns)), ""
    except Exception as error:  # as above; the reason reaches the user through CheckpointError
        return None, f"the download from the hub broke off: {type(error).__name__}: {error}"
