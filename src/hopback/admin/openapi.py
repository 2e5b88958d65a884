"""The OpenAPI document, made from the rows of the API."""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from hopback import __version__
from hopback.admin.api import JSON, ApiEndpoint, Empty
from hopback.admin.problems import MEDIA_TYPE
from hopback.deadletters.codec import schemas as schemas_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["ProblemDocument", "openapi_document"]

_REF = "#/components/schemas/{name}"
# Answers that need no row of their own: every request can be malformed, unwanted or one too many.
_ALWAYS = (400, 401, 403, 429, 503)
_PUBLIC = (429, 503)


class ProblemDocument(msgspec.Struct, frozen=True, rename="camel"):
    """An error (RFC 9457); some kinds carry further fields."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    correlation_id: str


def openapi_document(
    endpoints: Iterable[ApiEndpoint], further: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The whole document; `further` are paths that others wrote."""
    rows = list(endpoints)
    types: list[Any] = [ProblemDocument]
    for row in rows:
        types += [row.body, row.answer, *(kind for _, kind in row.further)]
    types = [kind for kind in types if kind]
    schemas, components = schemas_of(types, _REF)
    by_type = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, Any] = dict(further or {})
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


def _operation(row: ApiEndpoint, schemas: Mapping[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.summary,
        "parameters": [*_path_parameters(row), *_query_parameters(row.query), *_headers(row)],
        "responses": _responses(row, schemas),
    }
    if row.role is not None:
        operation["description"] = f"Needs the role `{row.role}` for {row.reach.value}."
    if row.public:
        operation["security"] = []
    if row.body is not None:
        operation["requestBody"] = {
            "required": not row.body_optional,
            "content": {JSON: {"schema": schemas[id(row.body)]}},
        }
    return operation


def _path_parameters(row: ApiEndpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        }
        for name in re.findall(r"\{(\w+)\}", row.path)
    ]


def _query_parameters(kind: type) -> list[dict[str, Any]]:
    if kind is Empty:
        return []
    _, components = schemas_of([kind], _REF)
    schema = components[kind.__name__]
    return [
        {"name": name, "in": "query", "required": False, "schema": _inlined(value, components)}
        for name, value in schema["properties"].items()
    ]


def _inlined(schema: Any, components: Mapping[str, Any]) -> Any:
    """A parameter's schema without references: those of a query are not among the components."""
    if isinstance(schema, dict) and "$ref" in schema:
        return components[schema["$ref"].rpartition("/")[2]]
    if isinstance(schema, dict):
        return {key: _inlined(value, components) for key, value in schema.items()}
    return [_inlined(each, components) for each in schema] if isinstance(schema, list) else schema


def _headers(row: ApiEndpoint) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": words,
            "schema": {"type": "string", "maxLength": 200},
        }
        for name, words in row.headers
    ]


def _responses(row: ApiEndpoint, schemas: Mapping[int, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {str(row.status): _success(row, schemas)}
    for status, kind in row.further:
        content = {JSON: {"schema": schemas[id(kind)]}}
        found[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    always = _PUBLIC if row.public else _ALWAYS
    own = (404,) if "{" in row.path else ()
    asked = (413, 415, 422) if row.body is not None else ()
    for status in sorted({*always, *own, *asked, *row.errors} - {row.status}):
        found[str(status)] = _problem(status)
    return found


def _success(row: ApiEndpoint, schemas: Mapping[int, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(row.status).phrase}
    schema = {} if row.answer is None else schemas[id(row.answer)]
    if row.status != HTTPStatus.NO_CONTENT:
        answer["content"] = {
            media: {"schema": schema if media == JSON else _plain_schema(media)}
            for media in row.media
        }
    return answer


def _plain_schema(media: str) -> dict[str, Any]:
    return {"type": "object"} if media.endswith("+json") else {"type": "string"}


@cache
def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name=ProblemDocument.__name__)}
    return {
        "description": HTTPStatus(status).phrase,
        "content": {MEDIA_TYPE: {"schema": schema}},
    }
