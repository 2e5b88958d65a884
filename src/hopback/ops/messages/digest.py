"""Compute the digest of a message. Jobs use it to recognise the message after a redelivery. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import lru_cache

from hopback.fields import Timestamp
from hopback.headers import canonical_text
from hopback.headers.names import is_broker_count
from hopback.message import Delivery, Properties

_HASHED_BYTES = 512 * 1024  # of each end of a body, in about a millisecond. The middle is left out.
_USUAL_HEADERS = 64  # headers whose sorted names are cached. More names may come from an attacker.
_SINGLE = frozenset({str, int, bool, float, bytes, Timestamp, type(None)})
# header values in canonical form. With more, they are hashed in their own order.
_MANY_VALUES = 1000
_SIMPLE_PROPERTIES = tuple(
    field.name
    for field in fields(Properties)
    if field.name not in {"headers", "further_headers", "opaque_headers"}
)


def content_digest(delivery: Delivery) -> str:
    """Return a hash of body and properties, without the counts that a quorum queue adds.

    For a body over 1 MiB, only the length, the beginning and the end are hashed.
    """
    digest = hashlib.sha256()
    body = delivery.body
    if len(body) > 2 * _HASHED_BYTES:
        body = body[:_HASHED_BYTES] + body[-_HASHED_BYTES:] + str(len(body)).encode()
    digest.update(body)
    properties = delivery.properties
    values, headers = vars(properties), properties.headers
    written = [f"{name}={values.get(name)!r}\n" for name in _SIMPLE_PROPERTIES]
    names = _lasting(tuple(headers)) if len(headers) <= _USUAL_HEADERS else _lasting_of(headers)
    lasting = {name: headers[name] for name in names}
    if _count(lasting, _MANY_VALUES) < _MANY_VALUES:
        written += [f"{name!r}={canonical_text(value)}\n" for name, value in lasting.items()]
    else:
        # A frame has room for tens of thousands. Unsorted they take a tenth of the time. A queue delivers
        # the same message in the same form each time.
        written.append(repr(lasting))
    if properties.further_headers:
        written.append(repr(properties.further_headers))
    digest.update("".join(written).encode("utf-8", "backslashreplace"))
    digest.update(properties.opaque_headers)
    return digest.hexdigest()


def _lasting_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the headers that are not written by the queue, sorted."""
    return tuple(sorted(name for name in names if not is_broker_count(name)))


# The messages of a queue have the same few header names.
_lasting = lru_cache(maxsize=256)(_lasting_of)


def _count(value: object, most: int) -> int:
    """Count all nested values, up to `most`."""
    # The wire decodes to dict and list. Checking for an abstract class takes ten times as long.
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
