"""What a policy is, by content: digests of its weights, its tokenizer and its template, and the layout of its prompts.

Two policies with equal identities write the same tokens; a name or a path says nothing, because other weights may be
put in their place.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rpl.core.contents import files_digest
from rpl.core.errors import CheckpointError
from rpl.core.files import digest
from rpl.policy.renderer import Renderer

_TENSOR_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth")
_TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "*.jinja", "vocab.*", "merges.txt")
_SAYS_NOTHING = ("_name_or_path", "transformers_version")
"""Fields of config.json that do not change what a model computes."""


def weights_identity(folder: Path) -> dict[str, str]:
    """Returns the digests of a model folder: `weights` (its tensor files) and `model_config`.

    Raises:
        CheckpointError: The folder holds no weights.
        DataError: A file cannot be read, or changes while it is read.
    """
    tensors = {file for pattern in _TENSOR_FILES for file in folder.glob(pattern)}
    if not tensors or not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: holds no model (config.json and files of weights)")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    told = {name: value for name, value in config.items() if name not in _SAYS_NOTHING}
    return {"weights": files_digest(tensors), "model_config": digest(json.dumps(told, sort_keys=True))}


def folder_identity(folder: Path) -> dict[str, str]:
    """Returns the digests of a whole model folder: those of `weights_identity`, and `tokenizer` (its files).

    Raises:
        CheckpointError: The folder holds no weights.
        DataError: A file cannot be read, or changes while it is read.
    """
    files = {file for pattern in _TOKENIZER_FILES for file in folder.glob(pattern)}
    return {**weights_identity(folder), "tokenizer": files_digest(files)}


def renderer_identity(renderer: Renderer) -> dict[str, Any]:
    """Returns what decides how a policy is asked: tokenizer, chat template, prompt style and layout."""
    tokenizer = renderer.tokenizer
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    # The tokenizer sets these two anew at each call.
    told = {name: value for name, value in backend.items() if name not in ("padding", "truncation")}
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
    return {
        "tokenizer": digest(json.dumps([told, special], sort_keys=True)),
        "template": digest(str(tokenizer.chat_template)),
        "style": renderer.style,
        "thinking": renderer.thinking,
        "layout": renderer.style_hash,
    }
