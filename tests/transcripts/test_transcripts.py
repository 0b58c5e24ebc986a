"""Runs transcripts: text files of commands, with what came of each beneath it.

    # A comment, kept.
    > verb argument name=value
    one line of output
    another

A folder beside this file holds the transcripts of one layer; `<folder>_driver.py` has its verbs: a class `Driver` whose
methods `do_<verb>(*arguments, **options)` return lines. Each file runs with a driver of its own. What a verb raises is
output too, when it is one of chaplain's own errors; anything else fails.
"""

import difflib
import importlib
import shlex
from pathlib import Path

import pytest

from chaplain.errors import ChaplainError

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*/*.txt"))


def execute(text, driver):
    """The transcript again, with the output that the driver gives now."""
    lines = []
    for block in split(text):
        if block[0].startswith("> "):
            lines += [block[0], *answer(driver, block[0][2:]), ""]
        else:
            lines += [*block, ""]
    return "\n".join(lines)


def split(text):
    """Blocks of lines: comments as they stand, and commands with their output. Blank lines part them."""
    blocks = []
    for line in text.splitlines():
        if line.startswith("> ") or (blocks and not blocks[-1]):
            blocks.append([])
        if not line.strip():
            blocks.append([])
        elif blocks:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return [block for block in blocks if block]


def answer(driver, command):
    verb, *words = shlex.split(command)
    arguments = [word for word in words if "=" not in word]
    options = dict(word.split("=", 1) for word in words if "=" in word)
    method = getattr(driver, f"do_{verb.replace('-', '_')}", None)
    assert method is not None, f"{type(driver).__module__} has no verb {verb!r}"
    try:
        return method(*arguments, **options) or ["(nothing)"]
    except ChaplainError as error:
        return [f"{type(error).__name__}: {error}"]


def make_driver(path):
    return importlib.import_module(f"tests.transcripts.{path.parent.name}_driver").Driver()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_transcript(path, request):
    expected = path.read_text()
    found = execute(expected, make_driver(path))
    if request.config.getoption("--rewrite", default=False):
        path.write_text(found)
        return
    difference = difflib.unified_diff(expected.splitlines(), found.splitlines(), "expected", "found", lineterm="", n=6)
    assert expected == found, "\n".join(["", *difference])


class Echo:
    def do_say(self, *words, times="1"):
        return [" ".join(words)] * int(times)

    def do_fail(self):
        raise ChaplainError("on purpose")

    def do_nothing(self):
        return []


def test_correct_transcript_is_unchanged_by_a_rewrite():
    right = "# Two lines\n# of comment.\n\n> say hello 'big world' times=2\nhello big world\nhello big world\n\n"
    right += "> nothing\n(nothing)\n\n> fail\nChaplainError: on purpose\n"
    assert execute(right, Echo()) == right


def test_wrong_or_empty_transcript_is_corrected_by_a_rewrite():
    assert execute("> say hi\nbye\n> say a\n", Echo()) == "> say hi\nhi\n\n> say a\na\n"


def test_unknown_verb_fails():
    with pytest.raises(AssertionError, match="no verb 'sing'"):
        execute("> sing\n", Echo())


def test_transcripts_exist():
    assert FILES
