"""Translates the parameter markers of a statement to those of PostgreSQL, before the grammar sees it.

`?` and `:name` become `$1`, `$2` …, so that the same statement runs on every engine; `$1` is accepted, too.
CURRENT_TIMESTAMP, which cannot be redefined in PostgreSQL, becomes a call of the executor's own `now()`. Quoted text
and comments stay unchanged.
"""

from __future__ import annotations

import re
from functools import lru_cache

from chaplain.executor.statement import Parameters, Value

_PIECES = re.compile(
    r"""
      (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*+')
    | (?P<text>'(?:[^']|'')*+')
    | (?P<name>"(?:[^"]|"")*+")
    | (?P<dollar>\$(?P<tag>[A-Za-z_\u0080-\uffff][\w\u0080-\uffff]*+)?\$.*?\$(?P=tag)?\$)
    | (?P<line>--[^\n]*+)
    | (?P<open>/\*)
    | (?P<numbered>\$\d++)
    | (?P<cast>::)
    | (?P<named>:[A-Za-z_]\w*+)
    | (?P<mark>\?)
    | (?P<word>[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*+)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"/\*|\*/")
_REMEMBERED_MAX = 1024


class ParameterMismatch(Exception):
    """The parameters do not fit the statement."""


def translated(sql: str) -> tuple[str, tuple[str, ...]]:
    """The text for PostgreSQL, and its parameter names in order; a `?` is named by its number."""
    return _remembered(sql) if len(sql) <= _REMEMBERED_MAX else _translate(sql)


def _translate(sql: str) -> tuple[str, tuple[str, ...]]:
    out: list[str] = []
    names: list[str] = []
    marks = place = 0
    while (found := _PIECES.search(sql, place)) is not None:
        out.append(sql[place : found.start()])
        place = found.end()
        piece = found[0]
        match found.lastgroup:
            case "open":
                place = _comment_end(sql, found.end())
                piece = " "
            case "line":
                piece = " "
            case "mark":
                marks += 1
                piece = _number(names, str(marks))
            case "named":
                piece = _number(names, piece[1:])
            case "word" if piece.lower() == "current_timestamp":
                piece = "now()"
            case _:
                pass
        out.append(piece)
    return "".join([*out, sql[place:]]), tuple(names)


_remembered = lru_cache(maxsize=_REMEMBERED_MAX)(_translate)


def _comment_end(sql: str, start: int) -> int:
    """Comments may be nested."""
    depth = 1
    for found in _COMMENT.finditer(sql, start):
        depth += 1 if found[0] == "/*" else -1
        if not depth:
            return found.end()
    return len(sql)


def _number(names: list[str], name: str) -> str:
    if name not in names:
        names.append(name)
    return f" ${names.index(name) + 1} "


def arranged(names: tuple[str, ...], parameters: Parameters) -> list[Value]:
    """The parameters in the order of the text."""
    if isinstance(parameters, dict):
        missing = [name for name in names if name not in parameters]
        if missing or len(names) < len(parameters):
            raise ParameterMismatch("parameters by name are those that the statement names, no more and no fewer")
        return [parameters[name] for name in names]
    if names and ([str(n + 1) for n in range(len(names))] != list(names) or len(names) != len(parameters)):
        raise ParameterMismatch(f"the statement takes {len(names)} parameters, not {len(parameters)}")
    return list(parameters)
