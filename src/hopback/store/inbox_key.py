"""By what the inbox knows a message: its id, a header, or whatever a function makes of the delivery."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, ClassVar

from hopback.errors import HopbackError
from hopback.headers import identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.message import Delivery

__all__ = ["NoInboxKey", "inbox_key"]

_LONGEST = 255  # as long as a message id can be; what is longer is known by its hash
_TAKEN = ("sha256-", "int ", "bytes ")  # what our own keys begin with: no text is mistaken for one


class NoInboxKey(HopbackError):
    """A message has nothing by which the inbox could know it again."""

    remedy: ClassVar[str] = "Let producers send it, or give the inbox another key."


def inbox_key(delivery: Delivery, key: str | Callable[[Delivery], str] | None) -> str:
    """The key of a delivery: by default its message id, or a hash of it where it has none.

    A text is the name of a header, whose value has to be text, bytes or a whole number; NoInboxKey if
    it is not there. A key that is long or cannot be printed is replaced by its hash.
    """
    if key is None:
        return identity(delivery)
    found = _header(delivery, key) if isinstance(key, str) else key(delivery)
    if not isinstance(found, str):
        # A number and the text of it are different values: a producer means one of them.
        return f"int {found:d}" if isinstance(found, int) else f"bytes {_hash(found)}"
    if not found:
        raise NoInboxKey("expected a key of the delivery, got an empty one")
    if len(found) > _LONGEST or not found.isprintable() or found.startswith(_TAKEN):
        return f"sha256-{_hash(found.encode('utf-8', 'surrogatepass'))}"
    return found


def _header(delivery: Delivery, name: str) -> str | bytes | int:
    value = delivery.properties.headers.get(name)
    if isinstance(value, bool) or not isinstance(value, str | bytes | int) or value in ("", b""):
        raise NoInboxKey(
            f"expected header {name!r} with text, bytes or a whole number, got {type(value).__name__}"
        )
    return value


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
