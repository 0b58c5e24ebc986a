"""`chaplain journal` and `chaplain client` as a person types them, against a real cluster."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from chaplain.cli.main import main
from chaplain.json_values import timestamp


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def chaplain(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> Done:
    """In this process: starting Python dozens of times would take longer than all the rest."""
    out, err = io.StringIO(), io.StringIO()
    standard_input = io.TextIOWrapper(io.BytesIO(stdin))
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        mock.patch.object(sys, "stdin", standard_input),
        mock.patch.dict(os.environ, environment),
        pytest.raises(SystemExit) as end,
    ):
        main([*map(str, arguments)])
    assert isinstance(end.value.code, int)
    return Done(end.value.code, out.getvalue(), err.getvalue())


def lines(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> list[dict]:
    """What a command that works says, one JSON object a line."""
    done = chaplain(*arguments, stdin=stdin, **environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def failure(*arguments: str | Path, code: int = 1, **environment: str) -> str:
    done = chaplain(*arguments, **environment)
    assert (done.returncode, done.stdout) == (code, ""), done
    said = done.stderr
    assert "Traceback" not in said
    if code == 1:
        assert said.count("\n") == 1, "one sentence"
    return said


def read_all(count, *where):
    """So many messages: the node that is read may be a little behind the one that gave the receipt."""
    end_s = time.monotonic() + 60
    while True:
        done = chaplain("journal", "read", *where)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode == 0 and len(found) >= count:
            return found
        assert time.monotonic() < end_s, done


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("clusters") / "j"
    assert chaplain("cluster", "up", "--nodes", "3", "--dir", directory).returncode == 0
    yield directory
    assert chaplain("cluster", "down", "--cluster", directory).returncode == 0


def test_journal_write_accepts_texts_files_and_standard_input(cluster, tmp_path):
    where = ("--stream", "notes", "--cluster", cluster)
    [receipt] = lines("journal", "write", "grüße", "--key", "k", *where)
    assert {"stream": "notes", "offset": 0, "client_message_id": 1}.items() <= receipt.items()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", receipt["timestamp"])
    assert re.fullmatch(r"[0-9a-f]{64}", receipt["hash"])
    (tmp_path / "f").write_bytes(b"\xff\x00")
    assert lines("journal", "write", "--file", tmp_path / "f", *where)[0]["offset"] == 1
    assert lines("journal", "write", "-", *where, stdin=b"two\nlines\n")[0]["offset"] == 2
    assert lines("journal", "write", os.fsdecode(b"no \xfftf-8"), *where)[0]["offset"] == 3
    found = read_all(4, *where)
    assert [(m["offset"], m["key"], m["value"]) for m in found] == [
        (0, "k", "grüße"),
        (1, None, {"base64": "/wA="}),
        (2, None, "two\nlines\n"),
        (3, None, {"base64": "bm8g/3RmLTg="}),
    ]
    assert found[0]["timestamp"] == receipt["timestamp"]
    assert {"stream", "offset", "key", "value", "timestamp", "client_id", "client_message_id"} <= set(found[0])


def test_stream_name_is_an_argument_or_an_option_but_not_both(cluster):
    where = ("--cluster", cluster)
    lines("journal", "write", "one", "--stream", "argument", *where)
    [message] = read_all(1, "argument", *where)
    assert message["value"] == "one"
    for names in ((), ("argument", "--stream", "argument")):
        wrong = failure("journal", "read", *names, *where, code=2)
        assert wrong.startswith("chaplain: give one stream: as the argument or as --stream")


def test_stream_delete_says_why_a_single_stream_stays():
    said = failure("stream", "delete", "orders", "--cluster", "c")
    assert "stream 'orders' cannot be deleted alone" in said


def test_stream_commands_show_offsets_times_and_last_messages(cluster):
    where = ("--cluster", cluster)
    receipts = lines("journal", "write", "--lines", "--stream", "logs", *where, stdin=b"1\n2\n3\n")
    read_all(3, "logs", *where)
    offsets = {"stream": "logs", "messages": 3, "first_offset": 0, "next_offset": 3}
    [listed] = [one for one in lines("stream", "list", *where, "--output", "json")[0] if one["stream"] == "logs"]
    assert listed == offsets
    [shown] = lines("stream", "show", "logs", *where, "--output", "json")
    times = {"first_timestamp": receipts[0]["timestamp"], "last_timestamp": receipts[2]["timestamp"]}
    assert {**offsets, **times}.items() <= shown.items()
    assert re.fullmatch(r"[0-9a-f]{64}", shown["chain"])
    assert [one["value"] for one in lines("stream", "tail", "logs", "-n", "2", *where)] == ["2", "3"]
    assert "there is no stream 'absent'" in failure("stream", "show", "absent", *where)


def test_journal_write_of_lines_prints_one_receipt_per_line(cluster, tmp_path):
    text = b"".join(b"%d\n" % number for number in range(5000)) + b"no line feed"
    where = ("--stream", "lines", "--cluster", cluster)
    receipts = lines("journal", "write", "--lines", *where, stdin=text)
    assert [receipt["offset"] for receipt in receipts] == list(range(5001))
    wanted = text.decode().split("\n")
    assert [m["value"] for m in read_all(len(wanted), *where)] == wanted
    assert [m["offset"] for m in lines("journal", "read", "--from", "10", "--to", "12", *where)] == [10, 11]
    assert lines("journal", "read", "--from", "5001", *where) == []
    (tmp_path / "f").write_bytes(b"a\nb\n")
    done = chaplain("journal", "write", "--file", tmp_path / "f", "--lines", "--output", "table", *where)
    assert done.stdout == "2 messages written to lines, the last one at offset 5002.\n"
    done = chaplain("journal", "write", "x", "--output", "table", *where)
    assert "5003" in done.stdout


def test_journal_read_with_follow_prints_later_messages(cluster):
    where = ("--stream", "follow", "--cluster", str(cluster))
    arguments = [sys.executable, "-m", "chaplain.cli.main", "journal", "read", "--follow", *where]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as reader:
        try:
            assert reader.stdout is not None
            for number in range(3):
                lines("journal", "write", str(number), *where)
                assert json.loads(reader.stdout.readline())["value"] == str(number)
        finally:
            reader.terminate()


def test_journal_read_of_missing_stream_offset_or_cluster_names_what_is_missing(cluster):
    where = ("--cluster", cluster)
    lines("journal", "write", "x", "--stream", "short", *where)
    read_all(1, "--stream", "short", *where)
    said = failure("journal", "read", "--stream", "short", "--from", "7", *where)
    assert said == "chaplain: stream 'short' ends before offset 1: 7 is not there yet\n"
    assert "there is no stream 'nope'" in failure("journal", "read", "--stream", "nope", *where)
    assert "give either TEXT, or --file" in failure("journal", "write", "--stream", "s", *where, code=2)
    assert "visible ASCII" in failure("journal", "write", "x", "--stream", "a b", *where, code=2)
    assert "the cluster's own" in failure("journal", "write", "x", "--stream", "_config", *where, code=2)
    assert "Invalid value for '--from'" in failure("journal", "read", "--stream", "s", "--from", "-1", *where, code=2)
    assert "there is no cluster at" in failure("journal", "read", "--stream", "s", "--cluster", "/nowhere")


def test_client_add_list_and_remove_show_rights_and_status(cluster, tmp_path):
    where = ("--cluster", cluster, "--output", "json")
    file = tmp_path / "alice.identity"
    [added] = lines("client", "add", "alice", "--write", "her-*", "--read", "*", "--out", file, *where)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert f"key {added['key']}\n" in file.read_text()
    alice = {"CHAPLAIN_IDENTITY": str(file)}
    assert lines("journal", "write", "a", "--stream", "her-own", *where, **alice)[0]["offset"] == 0
    assert "may not write" in failure("journal", "write", "a", "--stream", "other", *where, **alice)
    assert "only an admin" in failure("client", "add", "bob", "--out", tmp_path / "bob", *where, **alice)
    assert not (tmp_path / "bob").exists(), "a key that is of no use is not left behind"
    assert "has this name" in failure("client", "add", "alice", "--out", tmp_path / "again", *where)
    assert "a key is never overwritten" in failure("client", "add", "carol", "--out", file, *where)
    [listed] = [one for one in lines("client", "list", *where)[0] if one["name"] == "alice"]
    assert (listed["status"], listed["writes"], listed["reads"], listed["admin"]) == ("active", ["her-*"], ["*"], False)
    assert listed["key"] == added["key"]
    assert lines("client", "remove", "alice", *where) == [{"removed": "alice"}]
    said = failure("journal", "write", "b", "--stream", "her-own", *where, **alice)
    # A node that has not executed the removal yet lets it in, and then finds that nothing of it is written.
    assert "no node let us in" in said or "this client was removed" in said, said
    assert "there is no client 'alice'" in failure("client", "remove", "alice", *where)
    table = chaplain("client", "list", "--cluster", cluster).stdout
    assert "removed" in table
    assert lines("client", "add", "dave", "--key", added["key"], *where)[0]["file"] is None
    assert "base64url" in failure("client", "add", "eve", "--key", "?", *where, code=2)


def test_timestamps_are_printed_with_nanoseconds():
    assert timestamp(1_794_790_968_312_628_369) == "2026-11-16T01:02:48.312628369Z"
    assert timestamp(0) == "1970-01-01T00:00:00.000000000Z"
