"""Who we are: names and secrets that never show in a repr, a log line or an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from hopback.errors import ConnectionFailed

__all__ = ["Credentials", "Secret", "secret_from_environment", "secret_from_file"]

Secret: TypeAlias = Callable[[], str]
"""Asked anew for each connection, so that a rotated password is picked up."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and the way to the password; `mechanism` is PLAIN or EXTERNAL (a TLS certificate)."""

    user: str = "guest"
    secret: Secret = field(default=lambda: "guest", repr=False, compare=False)
    mechanism: str = "PLAIN"

    def response(self) -> bytes:
        """The SASL response; for PLAIN it holds the password and must not be kept."""
        if self.mechanism == "EXTERNAL":
            return self.user.encode()
        return b"\0%b\0%b" % (self.user.encode(), self.secret().encode())


def secret_from_file(path: str) -> Secret:
    """A password kept in a file, without the line end."""

    def read() -> str:
        try:
            return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as problem:
            reason = getattr(problem, "strerror", None) or "not UTF-8 text"
            raise ConnectionFailed(f"expected the password in {path}: {reason}") from None

    return read


def secret_from_environment(name: str) -> Secret:
    """A password kept in an environment variable."""

    def read() -> str:
        found = os.environ.get(name)
        if found is None:
            raise ConnectionFailed(f"expected the password in ${name}, which is not set")
        return found

    return read
