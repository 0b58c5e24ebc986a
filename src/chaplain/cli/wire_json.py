"""Mesh commands and parcels as the JSON objects that `chaplain wire` shows and takes. One object, one encoding."""

from __future__ import annotations

from typing import Any

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
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


def to_json(data: bytes, layer: str | None = None) -> dict[str, Any]:
    """The message these bytes are. Without a layer, a mesh command is known by its signature."""
    if layer == "mesh" or (layer is None and data.startswith(mesh.SIGNATURE)):
        return _command_to_json(mesh.decode(data))
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
    except (msgspec.ValidationError, ValueError) as error:
        raise Malformed(f"{layer}: {error}") from None
    raise Malformed(f'"layer" must be "mesh" or "parcel", not {layer!r}')


def _command_to_json(command: mesh.Command) -> dict[str, Any]:
    fields = msgspec.structs.asdict(command)
    if _CONTENT in fields:
        fields[_CONTENT] = fields[_CONTENT].hex()
    return {"layer": "mesh", "command": _NAMES[type(command)], **fields}


def _command_from_json(fields: dict[str, Any]) -> mesh.Command:
    name = fields.pop("command", None)
    kind = COMMANDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise Malformed(f'"command" must be one of {", ".join(COMMANDS)}, not {name!r}')
    if _CONTENT in kind.__struct_fields__:
        fields[_CONTENT] = _octets(fields.get(_CONTENT, ""), _CONTENT)
    _known(fields, kind.__struct_fields__)
    command: Any = msgspec.convert(fields, kind, builtin_types=(bytes,))
    return command  # type: ignore[no-any-return]


def _parcel_to_json(opened: Parcel) -> dict[str, Any]:
    return {
        "layer": "parcel",
        "node": opened.node,
        "version": opened.version,
        "protocol": opened.layer,
        "flags": opened.flags,
        "size": len(opened.body),
        "body": opened.body.hex(),
        "payload": opened.payload.hex(),
    }


class _ParcelFields(Frozen, frozen=True, forbid_unknown_fields=True):
    node: int
    protocol: int
    version: int = parcel.WIRE_VERSION
    flags: int = 0
    size: int | None = None
    body: str = ""
    payload: str = ""


def _parcel_from_json(fields: dict[str, Any]) -> Parcel:
    given = msgspec.convert(fields, _ParcelFields)
    body = _octets(given.body, "body")
    if given.size not in (None, len(body)):
        raise Malformed(f"parcel: size is {given.size}, but body has {len(body)} octets")
    if not 0 <= given.node < 1 << 32:
        raise Malformed("parcel: node has 32 bits")
    return Parcel(
        node=given.node,
        layer=given.protocol,
        body=body,
        payload=_octets(given.payload, "payload"),
        flags=given.flags,
        version=given.version,
    )


def _octets(text: object, what: str) -> bytes:
    try:
        return bytes.fromhex(text if isinstance(text, str) else "?")
    except ValueError:
        raise Malformed(f'"{what}" must be a text of hexadecimal digits') from None


def _known(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    unknown = [name for name in fields if name not in names]
    if unknown:
        raise Malformed(f"mesh: {unknown[0]!r} is no field of this command; it has {', '.join(names)}")
