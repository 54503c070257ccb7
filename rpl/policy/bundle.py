"""The contract that a policy folder carries in `rpl.json`: how its policy was trained to be asked.

A policy that was trained with the documented prompt is another one when it is asked with the compact prompt. So the
exported folder says what the weights alone do not: agent, prompt style, thinking, limits, primitives, version of the
program language, and what the chat template wrote. Whoever opens the folder takes these for its defaults, and a
setting that contradicts them is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rpl.core.errors import CheckpointError, ConfigError
from rpl.core.progress import say
from rpl.policy.prompts import Style
from rpl.policy.renderer import Renderer
from rpl.programs.grammar import LANGUAGE_VERSION

FILE = "rpl.json"
AGENT = "policy"
"""The agent that writes programs, reads their results and answers; there is no other yet."""
LIMITS = ("max_turns", "max_new_tokens", "max_context_tokens", "printed_tokens")


@dataclass(frozen=True)
class Contract:
    """What `rpl.json` says."""

    prompt_style: Style
    """`compact` or `documented`."""
    thinking: bool
    """Whether the policy may write plain text before a tag."""
    template: str
    """Digest of what the chat template writes around a message; see `ChatTemplate.digest`."""
    limits: Mapping[str, int]
    """The limits of training: turns, tokens of a completion, of the transcript and of one observation."""
    primitives: Sequence[str]
    """The primitives that worked in the library."""
    language: int = LANGUAGE_VERSION
    """Version of the program language."""
    agent: str = AGENT
    """What runs the policy."""


def contract_file(contract: Contract | None) -> dict[str, str]:
    """Returns the name and the text of the file, for `export_policy`; nothing without a contract."""
    return {} if contract is None else {FILE: json.dumps(asdict(contract), indent=2, ensure_ascii=False) + "\n"}


def read_contract(name: str | Path) -> Contract | None:
    """Reads the contract of a policy.

    Args:
        name: Whatever `load_policy` accepts; names that are no folder, and folders without the file, have none.

    Raises:
        CheckpointError: The file is damaged, or its agent or program language is not one of this version.
    """
    path = Path(name).expanduser() / FILE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return contract_from(found, str(path))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def contract_from(found: Any, where: str) -> Contract:
    """Checks the fields of a contract.

    Raises:
        CheckpointError: A field is missing, unknown or of another type, or its value is none of this version's.
    """
    kinds = {
        "prompt_style": str,
        "thinking": bool,
        "template": str,
        "limits": dict,
        "primitives": list,
        "language": int,
        "agent": str,
    }
    if not isinstance(found, dict) or set(found) != {field.name for field in fields(Contract)}:
        raise CheckpointError(f"{where}: must be an object with the fields {', '.join(kinds)}")
    for name, kind in kinds.items():
        if type(found[name]) is not kind:
            raise CheckpointError(f"{where}: field {name!r} must be of type {kind.__name__}, got {found[name]!r}")
    allowed: dict[str, tuple[Any, ...]] = {
        "prompt_style": ("compact", "documented"),
        "language": (LANGUAGE_VERSION,),
        "agent": (AGENT,),
    }
    for name, values in allowed.items():
        if found[name] not in values:
            told = " or ".join(repr(value) for value in values)
            raise CheckpointError(f"{where}: field {name!r} is {found[name]!r}; this version knows {told}")
    limits = found["limits"]
    if set(limits) != set(LIMITS) or any(type(value) is not int or value < 1 for value in limits.values()):
        raise CheckpointError(f"{where}: field 'limits' must hold {', '.join(LIMITS)}, whole numbers of at least 1")
    return Contract(**found)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a policy is asked."""

    prompt_style: Style
    thinking: bool
    contract: Contract | None
    """Of the folder; `None` where it has none."""


def agreed_layout(
    name: str | Path, prompt_style: Style | None = None, thinking: bool | None = None, prefix: str = ""
) -> Layout:
    """Returns the prompt style and the rule for thinking that a policy is to be asked with.

    Args:
        name: The policy; see `read_contract`.
        prompt_style: As the user wrote it; `None` takes that of the contract, `compact` without one.
        thinking: As the user wrote it; `None` takes that of the contract, `True` without one.
        prefix: What stands before the two names in the user's configuration, for messages.

    Raises:
        CheckpointError: The contract cannot be read.
        ConfigError: What the user wrote contradicts the contract; the message names both sides.
    """
    contract = read_contract(name)
    if contract is None:
        return Layout(prompt_style or "compact", True if thinking is None else thinking, None)
    for key, given in (("prompt_style", prompt_style), ("thinking", thinking)):
        trained = getattr(contract, key)
        if given is not None and given != trained:
            raise ConfigError(
                f"{prefix}{key} is {_yaml(given)}, but the policy was trained with {_yaml(trained)} "
                f"({Path(name) / FILE}); leave the setting out, or give the same"
            )
    return Layout(contract.prompt_style, contract.thinking, contract)


def check_template(contract: Contract | None, renderer: Renderer, name: str | Path) -> None:
    """Compares the chat template that a policy was trained with and the one in its folder.

    Raises:
        ConfigError: They write different prompts.
    """
    if contract is not None and contract.template != renderer.template.digest:
        raise ConfigError(
            f"{name}: the chat template in this folder ({renderer.template.digest}) is not the one that the policy "
            f"was trained with ({contract.template} in {FILE}); put the tokenizer's files of the training back"
        )


def check_primitives(contract: Contract | None, primitives: Sequence[str], name: str | Path) -> None:
    """Compares the primitives that a policy was trained with and those of the library that it is to search.

    Raises:
        ConfigError: The library lacks one of them.
    """
    if contract is not None and (missing := [p for p in contract.primitives if p not in primitives]):
        raise ConfigError(
            f"environment.library serves no {', '.join(missing)}, but the policy was trained to use it "
            f"({Path(name) / FILE}); the library serves {', '.join(primitives)}"
        )


def say_without_contract(name: str | Path, layout: Layout) -> None:
    """Says how a folder without a contract is asked."""
    if layout.contract is None and Path(name).expanduser().is_dir():
        say(
            f"{name} has no {FILE}: the policy is asked with prompt_style {layout.prompt_style} and thinking "
            f"{_yaml(layout.thinking)}"
        )


def _yaml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)
