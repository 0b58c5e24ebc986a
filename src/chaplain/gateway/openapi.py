"""The OpenAPI document, from the declarations of the endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from chaplain.gateway.operations import Documented, Operation, parameters_of
from chaplain.gateway.problems import MEDIA_TYPE, ProblemDocument, ProblemKind

VERSION = "3.1.0"
_REF = "#/components/schemas/{name}"
_SECURITY = "bearer"


def describe(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """The document as plain data."""
    schemas = _Schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": VERSION,
        "info": {
            "title": "chaplain gateway",
            "version": version,
            "description": "Events in an order that can be proven, over HTTP.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {_SECURITY: {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """JSON schemas of all types in the declarations."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        found: dict[Any, None] = {ProblemDocument: None}
        for operation in operations:
            bodies = operation.body.media_types.values() if operation.body is not None else ()
            parameters = [one.type for one in parameters_of(operation)]
            found.update(dict.fromkeys(one for one in (operation.answer.type, *bodies) if one is not None))
            found.update(dict.fromkeys(parameters))
        schemas, self.components = msgspec.json.schema_components([*found], ref_template=_REF)
        self._by_type = dict(zip(found, schemas, strict=True))

    def of(self, kind: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._by_type[kind]
        return found


def _operation(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            {
                "name": one.name,
                "in": one.place,
                "required": one.required,
                "schema": schemas.of(one.type) | ({"default": one.default} if one.default else {}),
            }
            for one in parameters_of(operation)
        ],
        "responses": {str(operation.answer.status): _answer(operation.answer, schemas)},
    }
    if operation.body is not None:
        content = {
            name: {} if kind is None else {"schema": schemas.of(kind)}
            for name, kind in operation.body.media_types.items()
        }
        described["requestBody"] = {"required": True, "content": content, "description": operation.body.description}
    if operation.needs_token:
        described["security"] = [{_SECURITY: []}]
    by_status: dict[int, list[ProblemKind]] = {}
    for kind in operation.all_problems:
        by_status.setdefault(kind.status, []).append(kind)
    for status, kinds in sorted(by_status.items()):
        described["responses"][str(status)] = _problem(status, kinds, schemas)
    return described


def _answer(answer: Documented, schemas: _Schemas) -> dict[str, Any]:
    schema = {"type": "string"} if answer.type is None else schemas.of(answer.type)
    return {"description": answer.description, "content": {answer.media_type.partition(";")[0]: {"schema": schema}}}


def _problem(status: int, kinds: Sequence[ProblemKind], schemas: _Schemas) -> dict[str, Any]:
    names = [kind.type for kind in kinds]
    schema = {"allOf": [schemas.of(ProblemDocument), {"properties": {"type": {"enum": names}}}]}
    described = "; ".join(f"`{kind.name}`: {kind.title}" for kind in kinds)
    return {"description": described or HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
