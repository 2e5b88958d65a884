"""Compute a digest of a message, by which jobs recognise it after a redelivery."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import lru_cache

from hopback.fields import Timestamp
from hopback.headers import canonical_text
from hopback.headers.names import is_broker_count
from hopback.message import Delivery, Properties

# bytes at each end of a body, which take about a millisecond. The rest is ignored.
_HASHED_BYTES = 512 * 1024
# headers whose sorted names are cached. Messages with more headers may be an attack.
_USUAL_HEADERS = 64
_SINGLE = frozenset({str, int, bool, float, bytes, Timestamp, type(None)})
# header values that are hashed in canonical form. If there are more, their order is not changed.
_MANY_VALUES = 1000
_SIMPLE_PROPERTIES = tuple(
    field.name
    for field in fields(Properties)
    if field.name not in {"headers", "further_headers", "opaque_headers"}
)


def content_digest(delivery: Delivery) -> str:
    """Return a hash of body and properties, excluding the counters written by a quorum queue.

    If the body is larger than 1 MiB, only its length, beginning and end are used.
    """
    digest = hashlib.sha256()
    body = delivery.body
    if len(body) > 2 * _HASHED_BYTES:
        body = body[:_HASHED_BYTES] + body[-_HASHED_BYTES:] + str(len(body)).encode()
    digest.update(body)
    properties = delivery.properties
    values, headers = vars(properties), properties.headers
    written = [f"{name}={values.get(name)!r}\n" for name in _SIMPLE_PROPERTIES]
    names = _lasting(tuple(headers)) if len(headers) <= _USUAL_HEADERS else _lasting_names(headers)
    lasting = {name: headers[name] for name in names}
    if _count(lasting, _MANY_VALUES) < _MANY_VALUES:
        written += [f"{name!r}={canonical_text(value)}\n" for name, value in lasting.items()]
    else:
        # A frame can contain tens of thousands of values. Without sorting, hashing is ten times as
        # fast. A queue always delivers the same message in the same form.
        written.append(repr(lasting))
    if properties.further_headers:
        written.append(repr(properties.further_headers))
    digest.update("".join(written).encode("utf-8", "backslashreplace"))
    digest.update(properties.opaque_headers)
    return digest.hexdigest()


def _lasting_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted names of all headers that are not counters of the queue."""
    return tuple(sorted(name for name in names if not is_broker_count(name)))


# Messages of a queue usually have the same few header names.
_lasting = lru_cache(maxsize=256)(_lasting_names)


def _count(value: object, most: int) -> int:
    """Count all nested values, but stop at `most`."""
    # Decoded values are dict and list. Checking for abstract classes takes ten times as long.
    kind = type(value)
    if kind is dict or (kind is not list and isinstance(value, Mapping)):
        inner: Iterable[object] = value.values()  # type: ignore[attr-defined]
    elif kind is list or kind is tuple:
        inner = value  # type: ignore[assignment]
    else:
        return 1
    found = len(value)  # type: ignore[arg-type]
    for each in inner:
        if found >= most:
            break
        found += 1 if type(each) in _SINGLE else _count(each, most - found)
    return found
