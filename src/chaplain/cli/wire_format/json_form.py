"""Messages as the JSON objects that `chaplain wire` shows and takes. One object, one encoding.

A parcel is shown with the message in it, if it is one of ours; octets inside of that are shown by their own layer.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from chaplain.cli.wire_format.fields import COMMAND, make, octets, show
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
"""The head's Master node id, which is nobody's field: whoever speaks is known otherwise."""


def to_json(data: bytes, layer: str | None = None) -> dict[str, Any]:
    """The message these bytes are. Without a layer, a mesh command is known by its signature."""
    if layer == "mesh" or (layer is None and data.startswith(mesh.SIGNATURE)):
        return _command_to_json(mesh.decode(data))
    if layer in WHOLE:
        return _whole_to_json(data, layer)
    return _parcel_to_json(parcel.decode(data))


def from_json(value: object) -> bytes:
    """The bytes of the message this object is. `Malformed` says what is wrong with it."""
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
        fields[_CONTENT] = octets(fields.get(_CONTENT, ""), _CONTENT)
    _known(fields, kind.__struct_fields__)
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
        fields.pop("message", None)  # what the data says
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
    """Without it, the message says what body and payload are."""
    payload: str = ""
    message: dict[str, Any] | None = None


def _parcel_from_json(fields: dict[str, Any]) -> Parcel:
    given = msgspec.convert(fields, _ParcelFields)
    body, payload = octets(given.body or "", "body"), octets(given.payload, "payload")
    if given.body is None and given.message is not None:
        body, carried = write_carried(given.protocol, given.message)
        payload = carried or payload
    if given.size not in (None, len(body)):
        raise Malformed(f"parcel: size is {given.size}, but body has {len(body)} octets")
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


def _known(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    unknown = [name for name in fields if name not in names]
    if unknown:
        raise Malformed(f"mesh: {unknown[0]!r} is no field of this command; it has {', '.join(names)}")
