"""The page about the mesh shows octets; here they are read back."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

import pytest

from chaplain.mesh import beacon, control_messages
from chaplain.mesh.beacon import Beacon, cluster_hash
from chaplain.mesh.settings import MeshSettings
from chaplain.units import SECOND_NS
from chaplain.wire import command, parcel
from chaplain.wire.command import Alive, Broadcast, DecenAck, Hello, Join, Leave, Ping

PAGE = (Path(__file__).parents[3] / "docs" / "protocol" / "mesh.md").read_text()
GOSSIP = parcel.encode(parcel.Parcel(1, parcel.Layer.GOSSIP, b"hi"))
COMMANDS = {
    "HELLO": Hello(1, "127.0.0.1", 7001, ("red", "blue"), 2, {"rack": "a"}),
    "ALIVE": Alive(2, GOSSIP),
    "BROADCAST": Broadcast(3, "red", b"hi"),
    "JOIN": Join(4, "green", 3),
    "LEAVE": Leave(65535, "green", 4),
    "PING": Ping(0),
    "DECENACK": DecenAck(1),
}


def examples(heading: str) -> list[bytes]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```hex\n(.*?)```", section, re.DOTALL)
    return [bytes.fromhex("".join(line.partition("#")[0] for line in block.splitlines())) for block in blocks]


@pytest.mark.parametrize("name", COMMANDS)
def test_command_examples_match_the_codec(name: str) -> None:
    [octets] = examples(name)
    assert command.decode(octets) == COMMANDS[name]
    assert command.encode(COMMANDS[name]) == octets


def test_control_message_examples_match_the_codec() -> None:
    shown = [control_messages.Heartbeat(), control_messages.AskPoolList(), control_messages.PoolList(("red",), 2)]
    assert [control_messages.decode(octets, 1) for octets in examples("Notes")] == shown
    assert [control_messages.encode(1, note) for note in shown] == examples("Notes")


def test_beacon_example_matches_the_codec() -> None:
    def sign(data: bytes) -> bytes:
        return hmac.digest(b"key", data, hashlib.sha256)

    [octets] = examples("Beacon")
    shown = Beacon(cluster_hash("chaplain"), b"b" * 16, 7, 1_000 * SECOND_NS, "127.0.0.1", 7007)
    assert beacon.decode(octets, lambda data, mac: sign(data) == mac) == shown
    assert beacon.encode(shown, sign) == octets


def test_page_names_every_setting_with_its_default() -> None:
    defaults = MeshSettings()
    for name, seconds in re.findall(r"^\| `(\w+_ns)` \| (\d+) s \|", PAGE, re.MULTILINE):
        assert getattr(defaults, name) == int(seconds) * SECOND_NS
    unnamed = {"cluster", "headers", "epoch_ns"}
    assert {name for name in MeshSettings.__struct_fields__ if f"`{name}`" not in PAGE} == unnamed
