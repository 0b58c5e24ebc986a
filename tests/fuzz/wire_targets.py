"""Bytes off the wire: commands, parcels and the primitives they are made of."""

from __future__ import annotations

from chaplain.errors import Malformed
from chaplain.wire import command, parcel
from chaplain.wire.command import Alive, Broadcast, DecenAck, Hello, Join, Leave, Ping
from chaplain.wire.primitives import ByteReader, put_dictionary, put_string, put_strings

COMMANDS = (
    Hello(1, "10.0.0.1", 7171, ("chat", "news"), 2, {"name": "ann", "x": "a=b"}),
    Alive(2, b"content"),
    Broadcast(3, "chat", b"content"),
    Join(4, "chat", 1),
    Leave(65535, "chat", 255),
    Ping(6),
    DecenAck(7),
)

SEEDS = {
    "target_command": [command.encode(example) for example in COMMANDS],
    "target_parcel": [
        parcel.encode(parcel.Parcel(1, parcel.Layer.GOSSIP, b"body", b"payload", 3)),
        parcel.encode(parcel.Parcel(0xFFFFFFFF, 15, b"", b"", 255, 15)),
    ],
    "target_string": [put_string("visible"), put_string("")],
    "target_strings": [put_strings(("a", "bc", "")), put_strings(())],
    "target_dictionary": [put_dictionary({"a": "1", "b": "=", "c": ""})],
}


def target_command(data: bytes) -> None:
    """What can be read is written back as the very same octets: each command has one encoding."""
    try:
        found = command.decode(data)
    except Malformed:
        return
    assert command.encode(found) == data


def target_parcel(data: bytes) -> None:
    try:
        found = parcel.decode(data)
    except Malformed:
        return
    assert parcel.encode(found) == data


def target_string(data: bytes) -> None:
    cursor = ByteReader(data)
    try:
        found = cursor.string("fuzz")
    except Malformed:
        return
    assert put_string(found) == data[: cursor.position]


def target_strings(data: bytes) -> None:
    cursor = ByteReader(data)
    try:
        found = cursor.strings("fuzz")
    except Malformed:
        return
    assert put_strings(found) == data[: cursor.position]


def target_dictionary(data: bytes) -> None:
    cursor = ByteReader(data)
    try:
        found = cursor.dictionary("fuzz")
    except Malformed:
        return
    assert put_dictionary(found) == data[: cursor.position]
