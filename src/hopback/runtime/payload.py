"""Encode and decode payloads.

The annotation of the handler defines how a payload is decoded. `bytes` are passed unchanged and
`str` is decoded as UTF-8. msgspec structs, pydantic models and protobuf messages are decoded by
their libraries. All other types are decoded from JSON. None of the libraries is required.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import types
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from hopback.errors import HopbackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Fit: TypeAlias = "Callable[[Any, str], Any]"


class Misfit(ValueError):
    """Raised when a value does not have the expected type."""

    def __init__(self, path: str, expected: str, got: object) -> None:
        self.path: str = path or "$"
        self.expected = expected
        # Payloads must not be logged, so don't include the value.
        kind = "nothing" if got is None else type(got).__name__
        super().__init__(f"{self.path}: expected {expected}, got {kind}")


def fitter(wanted: Any) -> _Fit:
    """Return a function that converts a JSON value to `wanted` or raises Misfit.

    Raises:
        TypeError: If the type is not supported.
    """
    known = _KNOWN.get(wanted) if isinstance(wanted, type) else None
    return _new_fitter(wanted) if known is None else known


def _fit_anything(value: Any, path: str) -> Any:
    return value


def _new_fitter(wanted: Any) -> _Fit:
    if wanted is Any or wanted is object:
        return _fit_anything
    if dataclasses.is_dataclass(wanted):
        return _fit_dataclass(wanted)
    if wanted in _PLAIN:
        return _fit_plain(wanted)
    special = _PARSED.get(wanted) if isinstance(wanted, type) else None
    if special is not None:
        return _fit_text(wanted, special)
    if isinstance(wanted, type) and not get_origin(wanted) and issubclass(wanted, Enum):
        return _fit_call(wanted, f"one of {[member.value for member in wanted]}")
    # Containers, unions and literals, followed by plain types.
    origin, args = get_origin(wanted) or wanted, get_args(wanted)
    if origin in (Union, types.UnionType):
        return _fit_union(args)
    if origin is Literal:
        return _fit_literal(args)
    if origin in (list, set, frozenset):
        return _fit_items(origin, fitter(args[0] if args else Any))
    if origin is tuple:
        return _fit_tuple(args)
    if origin is dict:
        return _fit_dict(fitter(args[1] if args else Any))
    raise TypeError(
        f"cannot decode a payload into {wanted!r}: expected a plain type, a dataclass or a container "
        "of these. Install msgspec or pydantic for their models"
    )


def _fit_plain(wanted: type) -> _Fit:
    """Convert plain types. An int is accepted for a float, but a bool is not accepted for an int."""
    accepted = (int, float) if wanted is float else (wanted,)

    def fit(value: Any, path: str) -> Any:
        if type(value) not in accepted:
            raise Misfit(path, _PLAIN[wanted], value)
        return float(value) if wanted is float else value

    return fit


def _fit_text(wanted: type, parse: Callable[[str], Any]) -> _Fit:
    """Convert types that are represented as strings."""

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, str):
            raise Misfit(path, f"a {wanted.__name__} as text", value)
        try:
            return parse(value)
        except (ValueError, InvalidOperation):
            raise Misfit(path, f"a {wanted.__name__}", value) from None

    return fit


def _fit_call(wanted: Callable[[Any], Any], expected: str) -> _Fit:
    """Convert types that do their own validation."""

    def fit(value: Any, path: str) -> Any:
        try:
            return wanted(value)
        except (TypeError, ValueError):
            raise Misfit(path, expected, value) from None

    return fit


def _fit_union(options: tuple[Any, ...]) -> _Fit:
    """Try each type of a union and return the first match."""
    fits = [(option, fitter(option)) for option in options if option is not type(None)]
    optional = type(None) in options
    tag, tagged = _tags([option for option, _ in fits])

    def fit(value: Any, path: str) -> Any:
        if value is None and optional:
            return None
        if len(fits) == 1:
            return fits[0][1](value, path)
        if isinstance(value, dict) and isinstance(value.get(tag), str | int):
            chosen = tagged.get(value[tag])
            # this type applies, so report its error instead of trying the others
            if chosen is not None:
                return chosen(value, path)
        for _, attempt in fits:
            try:
                return attempt(value, path)
            except Misfit:
                continue
        names = (_PLAIN.get(one) or str(getattr(one, "__name__", one)) for one, _ in fits)
        raise Misfit(path, " or ".join(names), value)

    return fit


def _tags(options: list[Any]) -> tuple[str, dict[Any, _Fit]]:
    """Find the field that tells the dataclasses of a union apart, and the converter for each of its
    values.

    The field has to be a Literal with different values in each dataclass. If there is no such
    field, its name is empty.
    """
    if len(options) < 2 or not all(dataclasses.is_dataclass(option) for option in options):
        return "", {}
    hints = [get_type_hints(option) for option in options]
    for name in hints[0]:
        values = [
            get_args(each[name]) if get_origin(each.get(name)) is Literal else () for each in hints
        ]
        every = [one for several in values for one in several]
        if all(values) and len(set(every)) == len(every):
            pairs = zip(options, values, strict=True)
            return name, {one: fitter(option) for option, several in pairs for one in several}
    return "", {}


def _fit_literal(options: tuple[Any, ...]) -> _Fit:
    """Check that a value is one of the options."""
    allowed = {(type(option), option) for option in options}

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, str | int | bool | None) or (type(value), value) not in allowed:
            raise Misfit(path, f"one of {list(options)}", value)
        return value

    return fit


def _fit_items(make: Callable[[Any], Any], item: _Fit) -> _Fit:
    """Convert lists and sets."""

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise Misfit(path, "a list", value)
        return make([item(inner, f"{path}[{index}]") for index, inner in enumerate(value)])

    return fit


def _fit_tuple(args: tuple[Any, ...]) -> _Fit:
    """Convert tuples."""
    if not args or (len(args) == 2 and args[1] is Ellipsis):
        return _fit_items(tuple, fitter(args[0] if args else Any))
    items = [fitter(arg) for arg in args]

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise Misfit(path, f"a list of {len(items)}", value)
        return tuple(
            item(inner, f"{path}[{index}]")
            for index, (item, inner) in enumerate(zip(items, value, strict=True))
        )

    return fit


def _fit_dict(item: _Fit) -> _Fit:
    """Convert dicts."""

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise Misfit(path, "an object", value)
        if item is _fit_anything:
            return value
        # Other keys may contain data, so only show identifiers.
        return {
            key: item(inner, f"{path}.{key if len(key) <= 40 and key.isidentifier() else '*'}")
            for key, inner in value.items()
        }

    return fit


def _fit_dataclass(wanted: Any) -> _Fit:
    """Convert dataclasses. Unknown keys are ignored."""
    hints = get_type_hints(wanted)
    fields: list[tuple[str, type, _Fit, bool]] = []

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise Misfit(path, f"an object for {wanted.__name__}", value)
        arguments = {}
        for name, plain, inner, required in fields:
            found = value.get(name, _Absent)
            if type(found) is plain:  # the common case, no conversion needed
                arguments[name] = found
            elif found is not _Absent:
                arguments[name] = inner(found, f"{path}.{name}")
            elif required:
                raise Misfit(f"{path}.{name}", "a value", None)
        return wanted(**arguments)

    # cache the converter before visiting the fields, since the dataclass may be recursive
    _KNOWN[wanted] = fit
    try:
        missing = dataclasses.MISSING
        for field in dataclasses.fields(wanted):
            if not field.init:
                continue
            required = field.default is missing and field.default_factory is missing
            hint = hints[field.name]
            plain = hint if hint in _PLAIN else _Absent
            fields.append((field.name, plain, fitter(hint), required))
    except TypeError:
        del _KNOWN[wanted]
        raise
    return fit


class _Absent:
    """Marks a missing value."""


_KNOWN: dict[type, _Fit] = {}
"""Converters of dataclasses. Other types are not cached: `A | B` equals `B | A`."""
_PLAIN: dict[Any, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}
_PARSED: dict[type, Callable[[str], Any]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
}


Decoder: TypeAlias = "Callable[[bytes], Any]"


class Undecodable(HopbackError):
    """Raised when a payload cannot be decoded. The message is dead-lettered without retries."""

    remedy = "Correct the producer, or the type the handler asks for, and re-drive the message."


def decoder_for(wanted: Any) -> Decoder:
    """Return a decoder for a type. It only raises Undecodable."""
    if wanted is bytes:
        return bytes
    if wanted is str:
        return guard(lambda body: body.decode())
    if is_model(wanted, "pydantic", "BaseModel"):
        return guard(_validate(wanted))
    if is_model(wanted, "google.protobuf.message", "Message"):
        return guard(wanted.FromString)
    if is_model(wanted, "msgspec", "Struct"):
        return guard(sys.modules["msgspec"].json.Decoder(wanted).decode)
    # Decode JSON and convert it.
    if wanted is Any or wanted is object:
        return guard(_json)
    fit = fitter(wanted)
    return guard(lambda body: fit(_json(body), ""))


def _validate(model: Any) -> Decoder:
    """Return a decoder for a pydantic model. Errors only contain locations, not the payload."""
    invalid: type[Exception] = sys.modules["pydantic"].ValidationError

    def validated(body: bytes) -> Any:
        try:
            return model.model_validate_json(body)
        except invalid as error:
            found = error.errors(include_input=False, include_url=False)  # type: ignore[attr-defined]
            places = [f"{'.'.join(map(str, one['loc'])) or '$'}: {one['msg']}" for one in found[:3]]
            raise Undecodable("; ".join(places)[:200]) from error

    return validated


_decode_text = json.JSONDecoder().decode
_decode_start = json.JSONDecoder().raw_decode


def _json(body: bytes) -> Any:
    """Parse JSON. Tries UTF-8 first."""
    try:
        text = str(body, "utf-8")
        if text[:1] in "{[":
            # Skip `decode`, because stripping whitespace takes as long as parsing a short text.
            found, end = _decode_start(text)
            if end == len(text):
                return found
        return _decode_text(text)
    except ValueError:
        return json.loads(body)


def is_model(wanted: Any, library: str, base: str) -> bool:
    """Return True if a type is a model defined with a certain library. Does not import the library."""
    module = sys.modules.get(library)
    return (
        module is not None
        and isinstance(wanted, type)
        and issubclass(wanted, getattr(module, base))
    )


def guard(decode: Decoder) -> Decoder:
    """Wrap a decoder so that all exceptions are converted to Undecodable."""

    def guarded(body: bytes) -> Any:
        try:
            return decode(body)
        except Undecodable:
            raise
        except Misfit as misfit:
            raise Undecodable(str(misfit)) from misfit
        except Exception as error:  # custom validators may raise anything
            # The message may contain parts of the payload, so keep it short.
            text = str(error) or type(error).__name__
            raise Undecodable(f"{type(error).__name__}: {text.splitlines()[0][:200]}") from error

    return guarded


def encode_payload(payload: object) -> tuple[bytes, str | None]:
    """Encode a payload and return it with its content type.

    Raises TypeError if it is not supported.
    """
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), None
    if isinstance(payload, str):
        return payload.encode(), "text/plain"
    if is_model(type(payload), "pydantic", "BaseModel"):
        model: Any = payload
        body = model.model_dump_json().encode()
        if model.model_config.get("ser_json_inf_nan") != "strings":
            _refuse_not_finite(payload, body)
        return body, "application/json"
    if is_model(type(payload), "google.protobuf.message", "Message"):
        return payload.SerializeToString(), "application/x-protobuf"  # type: ignore[attr-defined]
    if is_model(type(payload), "msgspec", "Struct"):
        body = bytes(sys.modules["msgspec"].json.encode(payload))
        _refuse_not_finite(payload, body)
        return body, "application/json"
    try:
        text = json.dumps(payload, default=_jsonable, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        if (place := _not_finite(payload, "$")) is None:
            raise
        raise _inexpressible(place) from error
    return text.encode(), "application/json"


def _refuse_not_finite(model: object, body: bytes) -> None:
    """Raise ValueError if a model contains NaN or infinity. Libraries usually write them as null."""
    if any(written in body for written in (b"null", b"NaN", b"Infinity")) and (
        place := _not_finite(model, "$")
    ):
        raise _inexpressible(place)


def _inexpressible(place: str) -> ValueError:
    return ValueError(
        f"expected a payload that JSON can express, got {place}: send None or a text instead"
    )


def _not_finite(value: object, path: str) -> str | None:
    """Find the first NaN or infinity in a payload and return its location."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} at {path}"
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = enumerate(value)
    elif dataclasses.is_dataclass(value):
        parts = ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value))
    elif is_model(type(value), "pydantic", "BaseModel"):
        parts = value  # type: ignore[assignment]  # iterates over names and values
    elif is_model(type(value), "msgspec", "Struct"):
        names: tuple[str, ...] = value.__struct_fields__  # type: ignore[attr-defined]
        parts = ((name, getattr(value, name)) for name in names)
    places = (_not_finite(part, f"{path}[{key!r}]") for key, part in parts)
    return next((place for place in places if place is not None), None)


def _jsonable(value: object) -> object:
    """Convert types that are not supported by `json`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        # A field that holds a set is read back as a set, so the order of its items does not matter.
        return {
            name: list(found) if isinstance(found, set | frozenset) else found
            for name, found in fields.items()
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, set | frozenset):
        raise TypeError(
            f"expected a payload of JSON types, dataclasses or models, got {type(value).__name__}, whose"
            " items have no order: send a list, such as `sorted(…)`, or an object"
        )
    raise TypeError(
        f"expected a payload of JSON types, dataclasses or models, got {type(value).__name__}"
    )
