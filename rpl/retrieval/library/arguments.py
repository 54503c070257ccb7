"""The arguments that primitives accept, checked in one place for libraries on this machine and on another."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from rpl.core.errors import PrimitiveError
from rpl.programs.primitives import MAX_RERANK, PRIMITIVES, SEARCHES, SERVED, Argument
from rpl.retrieval.base import MAX_K, MAX_QUERY_CHARS
from rpl.retrieval.corpus.corpus import is_encodable


def check_arguments(
    name: str, args: Mapping[str, Any], offered: Sequence[str], known: Container[str] | None = None
) -> dict[str, Any]:
    """Returns the arguments of one call with defaults filled in.

    Args:
        name: The primitive.
        args: JSON values.
        offered: The primitives that work in the library.
        known: The ids that exist; `None` where only a server can tell.

    Raises:
        PrimitiveError: The call is the program's fault; the message says what is allowed.
    """
    if name not in SERVED:
        raise PrimitiveError(f"unknown primitive {name!r}; this library offers {', '.join(offered)}")
    if name not in offered:
        raise PrimitiveError(f"{name} is not available in this library")
    takes = {argument.name: argument for argument in PRIMITIVES[name].takes}
    surplus = [key for key in args if key not in takes]
    if surplus:
        raise PrimitiveError(f"{name} takes {', '.join(takes)}; it does not take {', '.join(map(repr, surplus))}")
    return {key: _checked(name, argument, args.get(key), known) for key, argument in takes.items()}


def _checked(name: str, argument: Argument, value: Any, known: Container[str] | None) -> Any:
    if argument.kind == "query":
        return _query(name, value)
    if argument.kind == "count":
        return argument.default if value is None else _count(name, value)
    if argument.kind == "passages":
        return _ids(name, value, known)
    return _id(name, value, known)


def _query(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise PrimitiveError(f"{name} needs a query (a string), got {_show(value)}")
    query = " ".join(value.split())
    if not query and name not in SEARCHES:
        raise PrimitiveError(f"{name}: the query is empty")
    if len(query) > MAX_QUERY_CHARS:
        raise PrimitiveError(f"{name}: the query has {len(query)} characters; at most {MAX_QUERY_CHARS} are allowed")
    if not is_encodable(query):
        raise PrimitiveError(f"{name}: the query is not valid Unicode text")
    return query


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise PrimitiveError(f"{name}: k must be a whole number from 1 to {MAX_K}, got {_show(value)}")
    if not 1 <= value <= MAX_K:
        raise PrimitiveError(f"{name}: k must be from 1 to {MAX_K}, got {value}")
    return value


def _id(name: str, value: Any, known: Container[str] | None) -> str:
    if not isinstance(value, str):
        raise PrimitiveError(f"{name} needs a passage id (a string), got {_show(value)}")
    if (known is not None and value not in known) or not is_encodable(value):
        raise PrimitiveError(f"{name}: there is no passage with id {_show(value)}")
    return value


def _ids(name: str, value: Any, known: Container[str] | None) -> list[str]:
    if not isinstance(value, list | tuple):
        raise PrimitiveError(f"{name} needs a list of passages, got {_show(value)}")
    ids = list(dict.fromkeys(_id(name, item, known) for item in value))
    if len(ids) > MAX_RERANK:
        raise PrimitiveError(f"{name} accepts at most {MAX_RERANK} passages, got {len(ids)}")
    return ids


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
