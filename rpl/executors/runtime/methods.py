"""The methods of a program's values: what each costs in fuel, and how its result is bounded before it is computed.

`REVIEWED` lists the methods by what they cost. One that the grammar allows but that is missing here stays refused.
Standard library only: the worker imports this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rpl.executors.runtime.fuel import CHARS_PER_UNIT, ITEMS_PER_UNIT, MATCHES_PER_UNIT, SCANNED_PER_UNIT
from rpl.executors.runtime.values import MAX_CHARS, MAX_ITEMS, SIMPLE, ProgramPassage, size_error

if TYPE_CHECKING:
    from rpl.executors.runtime.guards import Guards

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
Handler = Callable[["Guards", Any, str, Arguments, Keywords], Any]

_LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _plain(guards: Guards, value: Any, name: str, args: Arguments, kwargs: Keywords) -> Any:
    """Methods that read or write the value once at most; `clear` also frees what the items hold."""
    length = len(value) * (2 if name == "clear" else 1)
    if length >= CHARS_PER_UNIT:
        guards.fuel.burn(length // (CHARS_PER_UNIT if type(value) is str else ITEMS_PER_UNIT))
    return getattr(value, name)(*args, **kwargs)


# Texts.


def _search(guards: Guards, text: str, name: str, args: Arguments, kwargs: Keywords) -> Any:
    if args and type(args[0]) is str:
        guards.comparisons.pay_search(text, args[0], backwards=name.startswith("r"))
    return getattr(text, name)(*args, **kwargs)


def _split(guards: Guards, text: str, name: str, args: Arguments, kwargs: Keywords) -> Any:
    separator = args[0] if args else kwargs.get("sep")
    if type(separator) is str:
        guards.comparisons.pay_search(text, separator, backwards=name == "rsplit")
    if len(text) < MAX_ITEMS:
        return _plain(guards, text, name, args, kwargs)
    limit = args[1] if len(args) > 1 else kwargs.get("maxsplit", -1)
    if len(args) <= 2 and type(limit) is int and not 0 <= limit <= MAX_ITEMS:
        args, kwargs = args[:1], {key: kwargs[key] for key in kwargs if key != "maxsplit"} | {"maxsplit": MAX_ITEMS}
    return _plain(guards, text, name, args, kwargs)


def _splitlines(guards: Guards, text: str, name: str, args: Arguments, kwargs: Keywords) -> Any:
    if len(text) > MAX_ITEMS:
        guards.fuel.burn(len(_LINE_ENDS) * len(text) // CHARS_PER_UNIT)
        if sum(map(text.count, _LINE_ENDS)) >= MAX_ITEMS:
            raise size_error("a list", MAX_ITEMS)
    return _plain(guards, text, name, args, kwargs)


def _strip(guards: Guards, text: str, name: str, args: Arguments, kwargs: Keywords) -> Any:
    if args and type(args[0]) is str:
        guards.fuel.burn(4 * len(text) * len(args[0]) // MATCHES_PER_UNIT)
    return _plain(guards, text, name, args, kwargs)


def _affix(guards: Guards, text: str, name: str, args: Arguments, kwargs: Keywords) -> Any:
    if args and type(args[0]) is tuple:
        guards.fuel.burn(len(args[0]) // ITEMS_PER_UNIT)
        affixes = [affix for affix in args[0] if type(affix) is str]
        guards.fuel.burn(len(affixes) // 100 + sum(map(len, affixes)) // CHARS_PER_UNIT)
    return _plain(guards, text, name, args, kwargs)


def _join(guards: Guards, text: str, name: str, args: Arguments, kwargs: Keywords) -> Any:
    if len(args) != 1:
        return getattr(text, name)(*args, **kwargs)
    parts = guards.spread(args[0])
    guards.fuel.burn(len(parts) // SCANNED_PER_UNIT)
    length = sum(len(part) for part in parts if type(part) is str) + len(text) * max(0, len(parts) - 1)
    if length > MAX_CHARS:
        raise size_error("a text", MAX_CHARS)
    for number, part in enumerate(parts):
        if type(part) is not str:
            raise TypeError(f"join() got {_shown_kind(part)} as item {number}; join texts, such as p.title or str(x)")
    guards.fuel.burn(length // CHARS_PER_UNIT)
    return text.join(parts)


def _replace(guards: Guards, text: str, name: str, args: Arguments, kwargs: Keywords) -> Any:
    if len(args) >= 2 and type(args[0]) is str and type(args[1]) is str:
        guards.comparisons.pay_search(text, args[0])
        times = text.count(args[0])
        limit = args[2] if len(args) > 2 else kwargs.get("count", -1)
        if type(limit) is int and limit >= 0:
            times = min(times, limit)
        length = len(text) + times * (len(args[1]) - len(args[0]))
        if length > MAX_CHARS:
            raise size_error("a text", MAX_CHARS)
        guards.fuel.burn(length // CHARS_PER_UNIT)
    return _plain(guards, text, name, args, kwargs)


# Lists.


def _add_item(guards: Guards, value: Any, name: str, args: Arguments, kwargs: Keywords) -> Any:
    if len(value) >= MAX_ITEMS:
        raise size_error(f"a {type(value).__name__}", MAX_ITEMS)
    if name == "insert":
        guards.fuel.burn(len(value) // ITEMS_PER_UNIT)
    elif name == "add" and args:
        guards.comparisons.key(args[0])
    return getattr(value, name)(*args, **kwargs)


def _extend(guards: Guards, value: list[Any], name: str, args: Arguments, kwargs: Keywords) -> Any:
    if len(args) != 1:
        return getattr(value, name)(*args, **kwargs)
    added = guards.spread(args[0])
    if len(value) + len(added) > MAX_ITEMS:
        raise size_error("a list", MAX_ITEMS)
    value.extend(added)
    return None


def _find_item(guards: Guards, value: list[Any], name: str, args: Arguments, kwargs: Keywords) -> Any:
    if not args or kwargs or len(args) > (3 if name == "index" else 1):
        return getattr(value, name)(*args, **kwargs)  # Python's own words for wrong arguments
    item = args[0]
    if type(item) in SIMPLE:
        guards.comparisons.pay_scan(value, item)
        try:
            return getattr(value, name)(*args)
        except ValueError:
            raise _absent(name) from None
    start = args[1] if len(args) > 1 else 0
    stop = args[2] if len(args) > 2 else len(value)
    places = guards.fuel.steps(range(len(value))[start:stop])
    found = (place for place in places if guards.comparisons.equal(item, value[place]))
    if name == "count":
        return sum(1 for _ in found)
    place = next(found, None)
    if place is None:
        raise _absent(name)
    if name == "remove":
        del value[place]
        return None
    return place


def _absent(name: str) -> ValueError:
    return ValueError(f"list.{name}(x): x is not in the list; test with `if x in …` first")


def _sort(guards: Guards, value: list[Any], name: str, args: Arguments, kwargs: Keywords) -> Any:
    if args or kwargs.keys() - {"key", "reverse"}:
        return getattr(value, name)(*args, **kwargs)
    guards.fuel.burn(len(value))
    key = guards.comparisons.sort_key(kwargs.get("key"), len(value))
    value.sort(key=key, reverse=bool(kwargs.get("reverse", False)))
    return None


# Dicts and sets.


def _look_up(guards: Guards, value: Any, name: str, args: Arguments, kwargs: Keywords) -> Any:
    if args:
        guards.comparisons.key(args[0])
    if name == "setdefault" and len(value) >= MAX_ITEMS:
        raise size_error("a dict", MAX_ITEMS)
    try:
        return getattr(value, name)(*args, **kwargs)
    except KeyError:
        raise missing_key(args[0]) from None


def missing_key(key: Any) -> KeyError:
    """Returns the error for a key that is not there; its message stays short whatever the key is."""
    if type(key) is str:
        return KeyError(key if len(key) <= 100 else key[:99] + "…")
    return KeyError(key if type(key) in SIMPLE and type(key) is not ProgramPassage else _shown_kind(key))


def _update_dict(guards: Guards, value: dict[Any, Any], name: str, args: Arguments, kwargs: Keywords) -> Any:
    if len(args) > 1:
        return getattr(value, name)(*args, **kwargs)
    added = guards.pairs(args[0], kwargs) if args else kwargs
    if len(value) + len(added) > MAX_ITEMS:
        raise size_error("a dict", MAX_ITEMS)
    value.update(added)
    return None


def _combine_sets(guards: Guards, value: set[Any], name: str, args: Arguments, kwargs: Keywords) -> Any:
    guards.fuel.burn(len(args))
    comparisons = guards.comparisons
    others = [comparisons.as_set(other) if type(other) is set else comparisons.keys(other) for other in args]
    sizes = len(comparisons.as_set(value)) + sum(map(len, others))
    if name in ("update", "union", "symmetric_difference") and sizes > MAX_ITEMS:
        raise size_error("a set", MAX_ITEMS)
    return getattr(value, name)(*others, **kwargs)


def _shown_kind(value: Any) -> str:
    return "a text" if type(value) is str else f"a {type(value).__name__}"


_HANDLERS: dict[str, dict[Handler, frozenset[str]]] = {
    "str": {
        _plain: _words(
            "lower upper title capitalize casefold isdigit isalpha isalnum isnumeric isupper islower isspace "
            "removeprefix removesuffix"
        ),
        _search: _words("find rfind index count partition rpartition"),
        _split: _words("split rsplit"),
        _splitlines: _words("splitlines"),
        _strip: _words("strip lstrip rstrip"),
        _affix: _words("startswith endswith"),
        _join: _words("join"),
        _replace: _words("replace"),
    },
    "list": {
        _plain: _words("pop clear reverse copy"),
        _add_item: _words("append insert"),
        _extend: _words("extend"),
        _find_item: _words("remove index count"),
        _sort: _words("sort"),
    },
    "dict": {
        _plain: _words("keys values items clear copy"),
        _look_up: _words("get pop setdefault"),
        _update_dict: _words("update"),
    },
    "set": {
        _plain: _words("clear copy"),
        _add_item: _words("add"),
        _look_up: _words("discard remove"),
        _combine_sets: _words(
            "union intersection difference symmetric_difference update issubset issuperset isdisjoint"
        ),
    },
}

HANDLERS: dict[tuple[str, str], Handler] = {
    (kind, name): handler
    for kind, handlers in _HANDLERS.items()
    for handler, names in handlers.items()
    for name in names
}
"""Type name and method name -> the function that calls the method."""

REVIEWED: dict[str, frozenset[str]] = {
    **{kind: frozenset().union(*handlers.values()) for kind, handlers in _HANDLERS.items()},
    "Passage": _words("id title text score rank"),
}
"""Type name -> the attributes whose cost was looked at."""
