"""The code that runs inside Monty before a program: its passages, its fuel, and the way of its values to the host.

Written in Monty's Python. A passage crosses to the host as its number in bytes, which no program can make (the language
has no bytes), and comes from there as a row; the texts of passages never travel back. A function crosses as empty
bytes. Whatever ends the program here raises `KeyboardInterrupt`, which no program and no operation of Monty raises.
"""

from __future__ import annotations

from rpl.executors.monty.source import HOST_CALLS
from rpl.executors.runtime.functions import MAX_RANGE
from rpl.executors.runtime.values import MAX_CHARS, MAX_NESTING

STOP = "stop"
"""Message of the interrupt after a call that the host refused."""

FUEL = "fuel"
"""Message of the interrupt when fuel ran out."""

SIZE = "size"
"""Message of the interrupt when a value is too large to cross."""

RANGE = "range"
"""Message of the interrupt when a range is too long."""

_PRELUDE = """\
_burnt_ = 0
_chars_ = 0
_items_ = 0
_type_, _len_, _list_, _range_, _hash_, _str_ = type, len, list, range, hash, str
_function_, _views_ = type(lambda: 0), (type({}.keys()), type({}.values()), type({}.items()))

def _tick_():
    global _burnt_
    _burnt_ += 1
    if _burnt_ > MAX_FUEL:
        raise KeyboardInterrupt('fuel')
    return True

def _undefined_(name):
    raise NameError(f"name '{name}' is not defined")

def range(*args):
    values = _range_(*args)
    if _len_(values) > MAX_RANGE:
        raise KeyboardInterrupt('range')
    return values

def _init_(self, number, id, title, text, score, rank):
    self._number_ = number
    self.id = id
    self.title = title
    self.text = text
    self.score = score
    self.rank = rank

def _line_(self):
    return f'[{self.id}] {self.title}: {self.text}' if self.title else f'[{self.id}] {self.text}'

_passage_ = type('Passage', (), {
    '__init__': _init_,
    '__eq__': lambda self, other: _type_(other) is _passage_ and self.id == other.id,
    '__hash__': lambda self: _hash_(self.id),
    '__str__': _line_,
    '__repr__': lambda self: f'<Passage {self.id}>',
})

def _in_(rows):
    return [_passage_(*row) for row in rows] if _type_(rows) is _list_ else _passage_(*rows)

def _out_(args, kwargs):
    global _chars_, _items_
    _chars_, _items_ = MAX_CHARS, MAX_FUEL
    return _pack_(args, -1), _pack_(kwargs, -1)

def _pack_(value, depth):
    global _chars_, _items_
    kind = _type_(value)
    if kind is _str_:
        _chars_ -= _len_(value)
        if _chars_ < 0:
            raise KeyboardInterrupt('size')
        return value
    if kind is _passage_:
        return _str_(value._number_).encode()
    if kind is _function_:
        return b''
    if kind not in (_list_, tuple, set, dict) and kind not in _views_:
        return value
    if depth > MAX_NESTING:
        return []
    _items_ -= _len_(value)
    if _items_ < 0:
        raise KeyboardInterrupt('fuel')
    depth += 1
    if kind is dict:
        return {_pack_(key, depth): _pack_(item, depth) for key, item in value.items()}
    if kind is set:
        return {_pack_(item, depth) for item in value}
    if kind is tuple:
        return tuple([_pack_(item, depth) for item in value])
    return [_pack_(item, depth) for item in value]
"""

_BARE = """
def NAME(*args, **kwargs):
    return WRAP(_NAME_(*_out_([*args], kwargs)))
"""


def prelude(fuel: int) -> str:
    """Returns the prelude for programs with this much fuel."""
    text = _PRELUDE
    for name, value in {"FUEL": fuel, "RANGE": MAX_RANGE, "CHARS": MAX_CHARS, "NESTING": MAX_NESTING}.items():
        text = text.replace(f"MAX_{name}", str(value))
    for name in sorted(HOST_CALLS):
        text += _BARE.replace("NAME", name).replace("WRAP", "" if name == "print" else "_in_")
    return text
