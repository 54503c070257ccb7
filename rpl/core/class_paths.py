"""Finds a class by the dotted path under which YAML names it."""

from __future__ import annotations

import importlib
import inspect
from typing import TypeVar

from rpl.core.errors import ConfigError

T = TypeVar("T")


def class_at(key: str, path: str, base: type[T], expected: str) -> type[T]:
    """Returns the class at a dotted path, in this package or in any other that can be imported.

    Args:
        key: The YAML key that names it, for messages.
        path: Its module and name.
        base: The class that it must derive from.
        expected: How the message calls that class.

    Raises:
        ConfigError: There is no such class, or it is of another kind.
    """
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{key}: there is no class {path!r} ({error})") from error
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise ConfigError(f"{key}: {path} is no {expected}")
    return found
