"""What commands take for octets, and for lines."""

from __future__ import annotations

import io
import sys

import pytest

from chaplain.cli.support.input_bytes import split_lines, text_or_stdin


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"a\r\nb\rc\x0bd\n", [b"a\r", b"b\rc\x0bd"]),
    ],
)
def test_input_lines_are_split_at_line_feeds_only(data: bytes, lines: list[bytes]) -> None:
    assert split_lines(data) == lines == [line.removesuffix(b"\n") for line in io.BytesIO(data)]


def test_dash_argument_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\r\n")))
    assert text_or_stdin("--") == b"--"
    assert text_or_stdin("-") == b"\xff\r\n"
