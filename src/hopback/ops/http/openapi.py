"""The OpenAPI document of the API, derived from the table of endpoints."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from hopback import __version__
from hopback.ops.contract.codec import schemas as schemas_of
from hopback.ops.contract.endpoints import EVENTS, JSON, Empty
from hopback.ops.http.problems import MEDIA_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hopback.ops.http.api import AnsweredEndpoint

_REF = "#/components/schemas/{name}"
# Every endpoint can return these errors, for invalid, unauthorised or too many requests.
_ALWAYS = (400, 401, 403, 422, 429, 503)
_PUBLIC = (429, 503)


class ProblemDocument(msgspec.Struct, frozen=True, rename="camel"):
    """An error (RFC 9457). Some errors have additional fields."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    correlation_id: str


_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
"""A server-sent event. Its data is JSON."""


def openapi_document(
    endpoints: Iterable[AnsweredEndpoint], brokers: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the OpenAPI document. All paths also exist below the path of each broker."""
    rows = list(endpoints)
    types: list[Any] = [ProblemDocument]
    for row in rows:
        types += [row.body, row.answer, *(kind for _, kind in row.further)]
    types = [kind for kind in types if kind]
    schemas, components = schemas_of(types, _REF)
    by_type = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, Any] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hopback admin API",
            "version": __version__,
            "description": "Dead letters, jobs and topology of a RabbitMQ. Times are RFC 3339, UTC.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        **_servers(brokers),
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A JWT, or an API key.",
                }
            },
        },
    }


def _servers(brokers: Sequence[str]) -> dict[str, Any]:
    if not brokers:
        return {}
    name = {"default": brokers[0], "enum": list(brokers)}
    return {
        "servers": [
            {"url": "/", "description": f"The first broker: {brokers[0]}."},
            {
                "url": "/brokers/{broker}",
                "description": "The broker with this name. `/admin/brokers` exists only without a name.",
                "variables": {"broker": name},
            },
        ]
    }


def _operation(row: AnsweredEndpoint, schemas: Mapping[int, Any]) -> dict[str, Any]:
    name = {"type": "string", "minLength": 1, "maxLength": 255}
    parameters = [
        {"name": each, "in": "path", "required": True, "schema": name} for each in row.path_names
    ]
    if row.query is not Empty:
        _, components = schemas_of([row.query], _REF)
        parameters += [
            {"name": each, "in": "query", "required": False, "schema": _inline(said, components)}
            for each, said in components[row.query.__name__]["properties"].items()
        ]
    text = {"type": "string", "maxLength": 200}
    parameters += [
        {"name": each, "in": "header", "required": False, "description": words, "schema": text}
        for each, words in row.headers
    ]
    operation: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.summary,
        "parameters": parameters,
        "responses": _responses(row, schemas),
    }
    if row.role is not None:
        rules = "; and for ".join(rule.text for rule in row.queues)
        operation["description"] = f"Needs the role `{row.role}` for {rules}."
    if row.public:
        operation["security"] = []
    if row.body is not None:
        operation["requestBody"] = {
            "required": not row.body_optional,
            "content": {JSON: {"schema": schemas[id(row.body)]}},
        }
    return operation


def _inline(schema: Any, components: Mapping[str, Any]) -> Any:
    """Replace all references in the schema of a parameter, because query types are not part of the
    components.
    """
    if isinstance(schema, dict) and "$ref" in schema:
        return components[schema["$ref"].rpartition("/")[2]]
    if isinstance(schema, dict):
        return {key: _inline(value, components) for key, value in schema.items()}
    return [_inline(each, components) for each in schema] if isinstance(schema, list) else schema


def _responses(row: AnsweredEndpoint, schemas: Mapping[int, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": HTTPStatus(row.status).phrase}
    if row.status != HTTPStatus.NO_CONTENT:
        schema = {} if row.answer is None else schemas[id(row.answer)]
        success["content"] = {media: {"schema": {"type": "string"}} for media in row.media}
        for media in row.media:
            if media == JSON:
                success["content"][media] = {"schema": schema}
            elif media.endswith("+json"):
                success["content"][media] = {"schema": {"type": "object"}}
            elif media == EVENTS:
                success["content"][media] = {"schema": _EVENT}
    found = {str(row.status): success}
    for status, kind in row.further:
        content = {JSON: {"schema": schemas[id(kind)]}}
        found[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    if row.takes_long:
        # Event streams have status 200. Their last event contains the actual status.
        events = found.setdefault("200", {"description": HTTPStatus.OK.phrase, "content": {}})
        events["content"][EVENTS] = {"schema": _EVENT}
    always = _PUBLIC if row.public else _ALWAYS
    own = (404,) if "{" in row.path else ()
    asked = (413, 415) if row.body is not None else ()
    problem = {"$ref": _REF.format(name=ProblemDocument.__name__)}
    for status in sorted({*always, *own, *asked, *row.errors} - {row.status}):
        found[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": problem}},
        }
    return found
