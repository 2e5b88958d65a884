"""Payloads: from the bytes of a message to what the handler asks for, and back.

The handler's annotation decides: `bytes` as they are, `str` as UTF-8, a msgspec Struct or a pydantic
model by its own library, anything else as JSON fitted to the type. Neither library is needed; each
is used only where the type is its own, or where msgspec is installed and does the same faster.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from hopback.errors import HopbackError
from hopback.runtime.shape import Misfit, fitter

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Decoder", "Undecodable", "decoder_for", "encode_payload"]

Decoder: TypeAlias = "Callable[[bytes], Any]"


class Undecodable(HopbackError):
    """The payload is not what the handler asks for; the message is parked at once."""

    remedy = "Correct the producer, or the type the handler asks for, and re-drive the message."


def decoder_for(wanted: Any) -> Decoder:
    """The decoder for a handler's annotation; it raises Undecodable and nothing else."""
    if wanted is bytes:
        return bytes
    if wanted is str:
        return _guarded(lambda body: body.decode())
    if _is_model(wanted, "pydantic", "BaseModel"):
        return _guarded(_validated(wanted))
    if _is_model(wanted, "msgspec", "Struct"):
        return _guarded(sys.modules["msgspec"].json.Decoder(wanted).decode)
    return _json_decoder(wanted)


def _validated(model: Any) -> Decoder:
    """A pydantic model; its own account of an error quotes the payload, ours gives the places."""
    invalid: type[Exception] = sys.modules["pydantic"].ValidationError

    def validated(body: bytes) -> Any:
        try:
            return model.model_validate_json(body)
        except invalid as error:
            found = error.errors(include_input=False, include_url=False)  # type: ignore[attr-defined]
            places = [f"{'.'.join(map(str, one['loc'])) or '$'}: {one['msg']}" for one in found[:3]]
            raise Undecodable("; ".join(places)[:200]) from error

    return validated


def _json_decoder(wanted: Any) -> Decoder:
    """JSON fitted to the type."""
    if wanted is Any or wanted is object:
        return _guarded(_json)
    fit = fitter(wanted)
    return _guarded(lambda body: fit(_json(body), ""))


_decode_text = json.JSONDecoder().decode


def _json(body: bytes) -> Any:
    """JSON is UTF-8 nearly always; whatever else the standard library can guess comes second."""
    try:
        return _decode_text(str(body, "utf-8"))
    except ValueError:
        return json.loads(body)


def _is_model(wanted: Any, library: str, base: str) -> bool:
    """Whether a type is a model of a library; a type of a library means that it is imported."""
    module = sys.modules.get(library)
    return (
        module is not None
        and isinstance(wanted, type)
        and issubclass(wanted, getattr(module, base))
    )


def _guarded(decode: Decoder) -> Decoder:
    """Whatever a decoder raises about hostile bytes becomes Undecodable, in one line."""

    def guarded(body: bytes) -> Any:
        try:
            return decode(body)
        except Undecodable:
            raise
        except Misfit as misfit:
            raise Undecodable(str(misfit)) from misfit
        except Exception as error:  # a model's own validators may raise anything
            raise Undecodable(f"{type(error).__name__}: {_first_line(error)}") from error

    return guarded


def _first_line(error: BaseException) -> str:
    """The first line of an error, short: payloads do not belong into reasons."""
    text = str(error) or type(error).__name__
    return text.splitlines()[0][:200]


def encode_payload(payload: object) -> tuple[bytes, str | None]:
    """The bytes of a payload and its content type; TypeError if it cannot be sent."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), None
    if isinstance(payload, str):
        return payload.encode(), "text/plain"
    if _is_model(type(payload), "pydantic", "BaseModel"):
        return payload.model_dump_json().encode(), "application/json"  # type: ignore[attr-defined]
    if _is_model(type(payload), "msgspec", "Struct"):
        return bytes(sys.modules["msgspec"].json.encode(payload)), "application/json"
    return json.dumps(
        payload, default=_jsonable, separators=(",", ":")
    ).encode(), "application/json"


def _jsonable(value: object) -> object:
    """What `json` does not know: dataclasses, enums, and what travels as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    raise TypeError(
        f"expected a payload of JSON types, dataclasses or models, got {type(value).__name__}"
    )
