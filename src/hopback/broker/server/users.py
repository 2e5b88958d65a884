"""Who may come in: names, passwords, and `guest` from this machine alone."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING

from hopback.endpoint import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Users"]


class Users:
    """Checks who somebody claims to be; every answer is a name, or None to refuse."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = dict(passwords)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._passwords)

    def plain(self, mechanism: str, response: bytes, peer: str) -> str | None:
        """Check a SASL PLAIN response: an identity that nobody needs, the name, the password."""
        parts = response.split(b"\0")
        if mechanism != "PLAIN" or len(parts) != 3:
            return None
        return self._checked(parts[1], parts[2], peer)

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
