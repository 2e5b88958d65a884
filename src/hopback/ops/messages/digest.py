"""The digest of a message, by which it is recognised after a redelivery."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING

from hopback.fields import Timestamp
from hopback.headers import (
    canonical_text,
)
from hopback.headers.names import is_broker_count
from hopback.message import Properties

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.message import Delivery


_HASHED_BYTES = 512 * 1024  # of either end of a body: hashing takes a millisecond then
# More names than these are not kept for the next message: a stranger may make them up.
_USUAL_HEADERS = 64
_SINGLE = frozenset({str, int, bool, float, bytes, Timestamp, type(None)})
_MANY_VALUES = 1000  # people send some tens; a message of more is made to be slow
_SIMPLE_PROPERTIES = tuple(
    field.name
    for field in fields(Properties)
    if field.name not in {"headers", "further_headers", "opaque_headers"}
)


def content_digest(delivery: Delivery) -> str:
    """A hash of body and properties; counts that a quorum queue writes have no part in it.

    Of a body over 1 MiB its length, beginning and end are hashed.
    """
    digest = hashlib.sha256()
    body = delivery.body
    if len(body) > 2 * _HASHED_BYTES:
        body = body[:_HASHED_BYTES] + body[-_HASHED_BYTES:] + str(len(body)).encode()
    digest.update(body)
    properties = delivery.properties
    said, headers = vars(properties), properties.headers
    written = [f"{name}={said.get(name)!r}\n" for name in _SIMPLE_PROPERTIES]
    names = _lasting(tuple(headers)) if len(headers) <= _USUAL_HEADERS else _lasting_of(headers)
    lasting = {name: headers[name] for name in names}
    if _count(lasting, _MANY_VALUES) < _MANY_VALUES:
        written += [f"{name!r}={canonical_text(value)}\n" for name, value in lasting.items()]
    else:
        # Tens of thousands fit into a frame. Written as they are they take a tenth of the time; a
        # queue hands the same message out in the same form each time.
        written.append(repr(lasting))
    # Nothing where there are none: selections of jobs that 0.1.0 has begun hold digests without it.
    if properties.further_headers:
        written.append(repr(properties.further_headers))
    digest.update("".join(written).encode("utf-8", "backslashreplace"))
    digest.update(properties.opaque_headers)
    return digest.hexdigest()


def _lasting_of(names: Iterable[str]) -> tuple[str, ...]:
    """Those that a queue does not write itself, sorted."""
    return tuple(sorted(name for name in names if not is_broker_count(name)))


# The messages of a queue have the same few headers.
_lasting = lru_cache(maxsize=256)(_lasting_of)


def _count(value: object, most: int) -> int:
    """How many values are in it, at whatever depth; it stops counting at `most`."""
    # What the wire reads is a dict or a list; to ask for an abstract class costs ten times as much.
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
