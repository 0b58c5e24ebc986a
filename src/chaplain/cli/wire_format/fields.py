"""Converts any message class to a JSON object and back: `{"command": "Inv", "stream": …}`, bytes in hexadecimal.

The conversion follows the annotations of the classes. It does not know the layers, so a new message needs no change
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from chaplain.errors import Malformed

COMMAND = "command"
"""The JSON key that contains the class name."""


def show(value: object) -> Any:
    """Return the value as JSON types only."""
    match value:
        case msgspec.Struct():
            fields = {name: show(getattr(value, name)) for name in value.__struct_fields__}
            return {COMMAND: type(value).__name__, **fields}
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case IntEnum():
            return int(value)
        case tuple() | list():
            return [show(each) for each in value]
        case Mapping():
            return {str(key): show(each) for key, each in value.items()}
        case _:
            return value


def make(value: object, kind: Any, what: str = "message") -> Any:
    """Build a value of type `kind` from the JSON form that `show` returns. `Malformed` names the wrong field."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _make_struct(value, kind, what)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _make_one_of(value, arguments, what)
    if kind in (bytes, memoryview):
        return parse_hex(value, what)
    if origin in (tuple, list):
        return _make_tuple(value, arguments, what)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, each = arguments
        return {make(_key(name, key), key, what): make(inner, each, what) for name, inner in _object(value, what)}
    return _make_plain(value, kind, what)


def _make_struct(value: object, kind: type[msgspec.Struct], what: str) -> msgspec.Struct:
    given = dict(_object(value, what))
    if given.pop(COMMAND, kind.__name__) != kind.__name__:
        raise Malformed(f'{what}: "{COMMAND}" must be {kind.__name__!r}')
    unknown = [name for name in given if name not in kind.__struct_fields__]
    if unknown:
        raise Malformed(f"{what}: {unknown[0]!r} is no field of {kind.__name__}")
    hints = get_type_hints(kind)
    fields = {name: make(inner, hints[name], name) for name, inner in given.items()}
    try:
        return kind(**fields)
    except TypeError as error:
        raise Malformed(f"{kind.__name__}: {error}") from None


def _make_one_of(value: object, kinds: tuple[Any, ...], what: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    structs = {each.__name__: each for each in kinds if isinstance(each, type) and issubclass(each, msgspec.Struct)}
    if structs:
        name = value.get(COMMAND) if isinstance(value, dict) else None
        if name not in structs:
            raise Malformed(f'{what}: "{COMMAND}" must be one of {", ".join(structs)}, not {name!r}')
        return make(value, structs[name], what)
    given = [each for each in kinds if each is not type(None)]
    fitting = [each for each in given if (get_origin(each) is dict) == isinstance(value, dict)]
    return make(value, (fitting or given)[0], what)


def _make_tuple(value: object, kinds: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise Malformed(f"{what}: a list is needed")
    each = (kinds[0],) * len(value) if len(kinds) < 2 or kinds[1] is Ellipsis else kinds
    if len(each) != len(value):
        raise Malformed(f"{what}: {len(each)} values are needed, not {len(value)}")
    return tuple(make(inner, kind, what) for inner, kind in zip(value, each, strict=True))


def _make_plain(value: object, kind: Any, what: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, tuple):  # a NamedTuple
        return kind(*_make_tuple(value, tuple(get_type_hints(kind).values()), what))
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Malformed(f"{what}: {error}") from None


def _object(value: object, what: str) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise Malformed(f"{what}: an object is needed")
    return list(value.items())


def _key(name: str, kind: Any) -> object:
    """Return a key of an object as its type: keys are always strings in JSON."""
    return int(name) if kind is int and name.lstrip("-").isdecimal() else name


def parse_hex(text: object, what: str) -> bytes:
    try:
        return bytes.fromhex(text if isinstance(text, str) else "?")
    except ValueError:
        raise Malformed(f'"{what}" must be a text of hexadecimal digits') from None
