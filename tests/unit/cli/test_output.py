"""Tables, whatever stands in them and wherever they are shown."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import click
import pytest

from chaplain.cli.main import LazyCommands, main
from chaplain.cli.support.output import escaped, print_table
from chaplain.errors import Refused

TABLE = "from chaplain.cli.support.output import print_table; print_table(['name'], [{'name': 'x' * 50}], 'a caption')"


def test_control_characters_and_markup_in_messages_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither as orders to the terminal nor as markup of the library that draws tables."""
    column = "[/y]\x1b[31m"
    rows = [{"value": "[/x] [red]b :smile:"}, {"value": "\x1b[2J\r", column: "a column of a table of somebody's"}]
    print_table(["value", column], rows, "[bold]caption")
    shown = capsys.readouterr().out
    assert r"[/y]\x1b[31m" in shown
    assert "[/x] [red]b :smile:" in shown
    assert "[bold]caption" in shown
    assert r"\x1b[2J\r" in shown
    assert "\x1b" not in shown
    assert escaped("zwei\nZeilen ö\x07") == "zwei\nZeilen ö\\x07"


def test_control_characters_in_error_messages_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason may be another client's words: the name of a column, of a constraint, of a stream."""
    for wrong in (Refused("constraint failed: t.\x1b]0;x\x07"), click.ClickException("votes: \x1b[2J 1")):
        monkeypatch.setattr(LazyCommands, "invoke", _Raising(wrong))
        with pytest.raises(SystemExit):
            main(["cluster", "status"])
        told = capsys.readouterr().err
        assert "\\x1b" in told
        assert "\x1b" not in told


class _Raising:
    def __init__(self, wrong: Exception) -> None:
        self.wrong = wrong

    def __call__(self, *_: object) -> None:
        raise self.wrong


def on_a_terminal(columns: int, **environment: str) -> str:
    """What a person would see of it."""
    here, there = pty.openpty()
    told = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), **environment}
    process = subprocess.Popen([sys.executable, "-c", TABLE], stdout=there, env=told)
    os.close(there)
    shown = b""
    try:
        while part := os.read(here, 65536):
            shown += part
    except OSError:  # so ends a terminal whose last writer has gone
        pass
    finally:
        os.close(here)
    assert process.wait(60) == 0
    return shown.decode()


def test_terminal_output_has_colours_unless_no_color_is_set() -> None:
    assert "\x1b[" in on_a_terminal(100, NO_COLOR="")
    assert "\x1b[" not in on_a_terminal(100, NO_COLOR="1")


def test_narrow_terminal_shows_complete_values() -> None:
    assert on_a_terminal(30, NO_COLOR="1").count("x") == 50


def test_characters_that_the_encoding_lacks_are_escaped() -> None:
    script = "import sys; from chaplain.cli.main import _prepare_streams; _prepare_streams(); " + TABLE.replace(
        "x", "ö"
    )
    told = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script], env=told, capture_output=True, check=True)
    assert done.stdout.count(b"\\xf6") == 50
