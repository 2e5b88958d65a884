"""Convert the values of the contract to and from JSON, and describe their schema. This uses
msgspec.

The HTTP API, commands, pages, events and the OpenAPI document all use this module.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hopback.errors import BadRequest
from hopback.headers import timestamp
from hopback.mismatches import MismatchFinder
from hopback.ops.contract.requests import Patch, PatchOperation
from hopback.ops.contract.values import Moment

if TYPE_CHECKING:
    from collections.abc import Iterable


ValueT = TypeVar("ValueT")


def to_json(value: object) -> Any:
    """Convert a value to JSON objects, lists, strings and numbers."""
    return msgspec.json.decode(encode(value))


def encode(value: object) -> bytes:
    """Encode a value as a JSON document."""
    return msgspec.json.encode(value, enc_hook=_write)


def from_json(kind: type[ValueT], data: bytes | str) -> ValueT:
    """Read a value from a JSON document. Raises BadRequest with all invalid fields."""
    try:
        found = decode(data)
    except ValueError as error:
        raise BadRequest("body", f"JSON: {error}") from None
    return convert(kind, found)


def decode(data: bytes | str) -> Any:
    """Parse a JSON document. Raises ValueError if it is not valid or nested too deeply."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def convert(kind: type[ValueT], found: object, *, strict: bool = True) -> ValueT:
    """Read a value from parsed JSON. Raises BadRequest with all invalid fields.

    If `strict` is False, numbers and booleans can also be strings, as in queries and forms.
    """
    try:
        return msgspec.convert(found, kind, strict=strict, dec_hook=_read)
    except msgspec.ValidationError:
        problems = list(MismatchFinder(strict=strict, decode=_read).find(kind, found))
    path, expected = problems[0]
    more = "".join(f"; {at}: expected {what}" for at, what in problems[1:])
    raise BadRequest(path or "body", f"{expected}{more}")


def check(kind: Any, value: object) -> None:
    """Raise BadRequest unless the value is valid as a document of this type."""
    convert(kind, msgspec.to_builtins(value, enc_hook=_write))


def read_patch(text: bytes | str) -> tuple[PatchOperation, ...]:
    """Read the operations of a JSON patch. Raises BadRequest for the field `change` if it is not valid."""
    try:
        steps: tuple[PatchOperation, ...] = from_json(Patch, text)
    except BadRequest as wrong:
        where = "" if wrong.field == "body" else f"at {wrong.field}, "
        what = wrong.expected.removeprefix("JSON: ")
        what = what if what.startswith("JSON") else what[:1].lower() + what[1:]
        raise BadRequest("change", f"a JSON patch: {where}{what}") from None
    if not steps:
        raise BadRequest("change", "a JSON patch of at least one step, got none")
    return steps


def schemas(
    kinds: Iterable[Any], ref_template: str = "#/components/schemas/{name}"
) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Return JSON schemas of types, and the named components that they refer to."""
    return msgspec.json.schema_components(kinds, schema_hook=_describe, ref_template=ref_template)


def _write(value: object) -> str:
    if isinstance(value, Moment):
        return timestamp(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def _read(kind: type, found: object) -> object:
    if kind is Moment and isinstance(found, str):
        moment = datetime.fromisoformat(found)
        return Moment((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    raise NotImplementedError(f"{kind.__name__} cannot be read from {type(found).__name__}")


def _describe(kind: type) -> dict[str, Any]:
    if kind is Moment:
        return {"type": "string", "format": "date-time"}
    raise NotImplementedError(f"{kind.__name__} has no form in JSON")
