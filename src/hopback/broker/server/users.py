"""Who may come in: names, passwords, and `guest` from this machine alone."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING

from hopback.endpoint import is_loopback
from hopback.wire.tables import decode_entries

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MECHANISMS", "Users"]

MECHANISMS = "PLAIN AMQPLAIN"
"""What clients may choose from; the second is PLAIN in a field table, and PHP's favourite."""


class Users:
    """Checks who somebody claims to be; every answer is a name, or None to refuse."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = dict(passwords)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._passwords)

    def sasl(self, mechanism: str, response: bytes, peer: str) -> str | None:
        """Check the response of a client's handshake."""
        match mechanism:
            case "PLAIN":
                parts = response.split(b"\0")
                return self._checked(parts[1], parts[2], peer) if len(parts) == 3 else None
            case "AMQPLAIN":
                told = decode_entries(response).headers
                name, password = told.get("LOGIN"), told.get("PASSWORD")
                if isinstance(name, str) and isinstance(password, str):
                    return self._checked(name.encode(), password.encode(), peer)
        return None

    def basic(self, header: str, peer: str) -> str | None:
        """Check an HTTP `Authorization` header."""
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return None
        return self._checked(name, password, peer) if colon else None

    def _checked(self, name: bytes, password: bytes, peer: str) -> str | None:
        try:
            user = name.decode()
        except UnicodeDecodeError:
            return None
        known = self._passwords.get(user)
        if known is None or not hmac.compare_digest(known.encode(), password):
            return None
        return None if user == "guest" and not is_loopback(peer) else user
