"""Classes and codecs for messages that have no class of their own, or none that JSON can represent, in `chaplain wire`.

MACs and signatures are shown and accepted unchecked, because this program does not have the keys.
"""

from __future__ import annotations

from typing import Any

import msgspec

from chaplain.cli.wire_format.fields import COMMAND, parse_hex
from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.executor import statement
from chaplain.executor.statement import OutcomeRun, Statement
from chaplain.graph.messages import event as graph_event
from chaplain.journal.messages import cluster, ingest, write_request
from chaplain.journal.messages.cluster import ConfigEntry, Reference
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.link.auth import hello as greeting
from chaplain.mesh import beacon
from chaplain.mesh.beacon import CLUSTER_BYTES, INSTANCE_BYTES, MAC_BYTES, Beacon
from chaplain.wire import command
from chaplain.wire.command import Hello
from chaplain.wire.primitives import ByteReader


class Ingest(Frozen, frozen=True):
    """The parts of an ingest message."""

    reference: Reference
    entries: tuple[IngestEntry, ...]


def read_ingest(data: bytes) -> Ingest:
    message = ingest.decode(data)
    return Ingest(message.reference, message.entries)


def raw_of(event: graph_event.SignedEvent) -> bytes:
    if graph_event.decode(event.raw) != event:
        raise Malformed('event: "raw" is what is hashed and signed, and says something else than the other fields')
    return event.raw


def signed_only(heading: write_request.Heading) -> bytes:
    raise Malformed("request: only its heading is shown, and only its client can sign it: use `chaplain journal write`")


class Datagram(Frozen, frozen=True):
    beacon: Beacon
    mac: bytes


def read_beacon(data: bytes) -> Datagram:
    return Datagram(beacon.decode(data, lambda signed, mac: True), data[-MAC_BYTES:])


def write_beacon(datagram: Datagram) -> bytes:
    made, sizes = datagram.beacon, (CLUSTER_BYTES, INSTANCE_BYTES, MAC_BYTES)
    if (len(made.cluster), len(made.instance), len(datagram.mac)) != sizes:
        raise Malformed("beacon: cluster, instance and mac have {}, {} and {} octets".format(*sizes))
    return beacon.encode(made, lambda signed: datagram.mac)


class GreetingShape(Frozen, frozen=True):
    """A greeting's envelope, and the HELLO in it."""

    octet: int
    prover: bytes
    hello: Hello
    signature: bytes
    mac: bytes = b""


def read_greeting(data: bytes) -> GreetingShape:
    envelope = greeting.open_envelope(data)
    hello = command.decode(envelope.hello)
    if not isinstance(hello, Hello):
        raise Malformed("greeting: holds another command than HELLO")
    return GreetingShape(envelope.octet, envelope.prover, hello, envelope.signature, envelope.mac)


def write_greeting(shown: GreetingShape) -> bytes:
    return bytes((shown.octet,)) + shown.prover + command.encode(shown.hello) + shown.signature + shown.mac


def read_config_entry(data: bytes) -> ConfigEntry:
    cursor = ByteReader(data)
    entry = cluster.take_config(cursor)
    cursor.end("entry")
    return entry


# An SQL value may be bytes, which JSON does not have: here they become the object {"octets": "hex"}.


class Octets(Frozen, frozen=True):
    octets: bytes


def read_statement(data: bytes) -> Statement:
    return _wrap_bytes(statement.decode_statement(data))  # type: ignore[no-any-return]


def write_statement(shown: Statement) -> bytes:
    return statement.encode_statement(_unwrap_bytes(shown))


def read_run(data: bytes) -> OutcomeRun:
    return _wrap_bytes(statement.decode_run(data))  # type: ignore[no-any-return]


def write_run(shown: OutcomeRun) -> bytes:
    return statement.encode_run(_unwrap_bytes(shown))


def _wrap_bytes(value: Any) -> Any:
    """Replace bytes by `Octets`, at any depth."""
    match value:
        case bytes():
            return Octets(value)
        case msgspec.Struct():
            fields = value.__struct_fields__
            return msgspec.structs.replace(value, **{name: _wrap_bytes(getattr(value, name)) for name in fields})
        case tuple() | list():
            return tuple(map(_wrap_bytes, value))
        case dict():
            return {name: _wrap_bytes(inner) for name, inner in value.items()}
        case _:
            return value


def _unwrap_bytes(value: Any) -> Any:
    """Replace `Octets` by bytes, at any depth."""
    match value:
        case {"octets": text, **rest} if rest == {COMMAND: Octets.__name__}:
            return parse_hex(text, "octets")
        case msgspec.Struct():
            fields = value.__struct_fields__
            return msgspec.structs.replace(value, **{name: _unwrap_bytes(getattr(value, name)) for name in fields})
        case tuple() | list():
            return tuple(map(_unwrap_bytes, value))
        case dict():
            return {name: _unwrap_bytes(inner) for name, inner in value.items()}
        case _:
            return value
