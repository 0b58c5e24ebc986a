"""Converts messages to and from the JSON objects that `chaplain wire` prints and accepts. One object has one encoding.

A parcel is shown with the message that it carries, if that message is known. Bytes inside that message stay
hexadecimal; `chaplain wire decode --layer` decodes them separately.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from chaplain.cli.wire_format.fields import COMMAND, make, parse_hex, show
from chaplain.cli.wire_format.layers import WHOLE, read_carried, read_config, write_carried
from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages import consensus
from chaplain.journal.messages.cluster import Body, ConfigEntry
from chaplain.wire import command as mesh
from chaplain.wire import parcel
from chaplain.wire.parcel import Parcel

COMMANDS: dict[str, type[Frozen]] = {
    "HELLO": mesh.Hello,
    "ALIVE": mesh.Alive,
    "BROADCAST": mesh.Broadcast,
    "JOIN": mesh.Join,
    "LEAVE": mesh.Leave,
    "PING": mesh.Ping,
    "DECENACK": mesh.DecenAck,
}
_NAMES = {kind: name for name, kind in COMMANDS.items()}
_CONTENT = "content"
_ORDER_NODE_AT = 15
"""Position of the head's Master node id. No message class has a field for it, because receivers know the sender from
the session."""


def to_json(data: bytes, layer: str | None = None) -> dict[str, Any]:
    """Decode bytes. Without a layer, bytes that begin with the mesh signature are a command, all others a parcel."""
    if layer == "mesh" or (layer is None and data.startswith(mesh.SIGNATURE)):
        return _command_to_json(mesh.decode(data))
    if layer in WHOLE:
        return _whole_to_json(data, layer)
    return _parcel_to_json(parcel.decode(data))


def from_json(value: object) -> bytes:
    """Encode the message that the object describes. `Malformed` says what is wrong with the object."""
    if not isinstance(value, dict):
        raise Malformed("a message is a JSON object, as `chaplain wire decode` shows it")
    fields = dict(value)
    layer = fields.pop("layer", None)
    try:
        if layer == "mesh":
            return mesh.encode(_command_from_json(fields))
        if layer == "parcel":
            return parcel.encode(_parcel_from_json(fields))
        if isinstance(layer, str) and layer in WHOLE:
            return _whole_from_json(fields, layer)
    except (msgspec.ValidationError, ValueError, OverflowError, struct.error) as error:
        raise Malformed(f"{layer}: {error}") from None
    raise Malformed(f'"layer" must be one of {", ".join(("mesh", "parcel", *WHOLE))}, not {layer!r}')


def _command_to_json(command: mesh.Command) -> dict[str, Any]:
    return {"layer": "mesh", **show(command), COMMAND: _NAMES[type(command)]}


def _command_from_json(fields: dict[str, Any]) -> mesh.Command:
    name = fields.pop("command", None)
    kind = COMMANDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise Malformed(f'"command" must be one of {", ".join(COMMANDS)}, not {name!r}')
    if _CONTENT in kind.__struct_fields__:
        fields[_CONTENT] = parse_hex(fields.get(_CONTENT, ""), _CONTENT)
    _refuse_unknown(fields, kind.__struct_fields__)
    command: Any = msgspec.convert(fields, kind, builtin_types=(bytes,))
    return command  # type: ignore[no-any-return]


def _whole_to_json(data: bytes, layer: str) -> dict[str, Any]:
    message = WHOLE[layer].decode(data)
    shown = {"layer": layer, **show(message)}
    if layer == "order":
        shown["node"] = data[_ORDER_NODE_AT]
    if isinstance(message, ConfigEntry):
        shown["message"] = show(read_config(message))
    if isinstance(message, Body):
        for entry, entry_shown in zip(message.entries, shown["entries"], strict=True):
            if isinstance(entry, ConfigEntry):
                entry_shown["message"] = show(read_config(entry))
    return shown


def _whole_from_json(fields: dict[str, Any], layer: str) -> bytes:
    if layer == "order":
        node = fields.pop("node", 0)
        return consensus.encode(make(fields, WHOLE[layer].kinds), node)
    if layer == "config":
        fields.pop("message", None)  # derived from `data`, which is encoded
    if layer == "cluster":
        entries = fields.get("entries")
        listed = entries if isinstance(entries, list) else []
        fields["entries"] = [{k: v for k, v in dict(entry).items() if k != "message"} for entry in listed]
    return WHOLE[layer].encode(make(fields, WHOLE[layer].kinds))


def _parcel_to_json(opened: Parcel) -> dict[str, Any]:
    message = read_carried(opened.layer, opened.body, opened.payload)
    return {
        "layer": "parcel",
        "node": opened.node,
        "version": opened.version,
        "protocol": opened.layer,
        "flags": opened.flags,
        "size": len(opened.body),
        "body": opened.body.hex(),
        "payload": opened.payload.hex(),
        **({} if message is None else {"message": show(message)}),
    }


class _ParcelFields(Frozen, frozen=True, forbid_unknown_fields=True):
    node: int
    protocol: int
    version: int = parcel.WIRE_VERSION
    flags: int = 0
    size: int | None = None
    body: str | None = None
    """If None, `message` is encoded as body and payload."""
    payload: str = ""
    message: dict[str, Any] | None = None


def _parcel_from_json(fields: dict[str, Any]) -> Parcel:
    given = msgspec.convert(fields, _ParcelFields)
    body, payload = parse_hex(given.body or "", "body"), parse_hex(given.payload, "payload")
    if given.body is None and given.message is not None:
        body, carried = write_carried(given.protocol, given.message)
        payload = carried or payload
    if given.size not in (None, len(body)):
        raise Malformed(f"parcel: size is {given.size}, but body has {len(body)} parse_hex")
    if not 0 <= given.node < 1 << 32:
        raise Malformed("parcel: node has 32 bits")
    return Parcel(
        node=given.node,
        layer=given.protocol,
        body=body,
        payload=payload,
        flags=given.flags,
        version=given.version,
    )


def _refuse_unknown(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    unknown = [name for name in fields if name not in names]
    if unknown:
        raise Malformed(f"mesh: {unknown[0]!r} is no field of this command; it has {', '.join(names)}")
