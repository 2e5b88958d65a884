"""Where the management API is: given, or derived from the AMQP address of the same broker."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from hopback.errors import ConnectionFailed

__all__ = ["ManagementAddress", "virtual_host"]

_PLAIN_PORT = 15672  # RabbitMQ's default
_TLS_PORT = 15671  # RabbitMQ's default
_SCHEMES = {"amqp": "http", "amqps": "https", "http": "http", "https": "https"}


@dataclass(frozen=True, slots=True)
class ManagementAddress:
    """Address and credentials of a management API; the password is never shown."""

    url: str
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def derive(cls, broker: str | None, management: str | None = None) -> Self:
        """Combine an AMQP address and an HTTP one, of which either may be missing.

        Host and port come from `management` if it is given; credentials and certificates come
        from whichever names them first, `management` before `broker`.
        """
        amqp = _split(broker, "broker", ("amqp", "amqps")) if broker else None
        http = _split(management, "management", ("http", "https")) if management else None
        chosen = http or amqp
        if chosen is None:
            raise ValueError("expected a broker or a management address, got neither")
        sources = tuple(part for part in (http, amqp) if part is not None)
        user, password = _credentials(sources)
        # `cacertfile`, `certfile` and `keyfile` of the query, as AMQP addresses name them.
        merged: dict[str, str] = {}
        for parts in sources:
            for key, values in parse_qs(parts.query).items():
                merged.setdefault(key, values[-1])
        return cls(
            _base(chosen),
            user,
            password,
            merged.get("cacertfile"),
            merged.get("certfile"),
            merged.get("keyfile"),
        )


def virtual_host(broker: str) -> str:
    """The virtual host that an AMQP address names; `/` where it names none."""
    path = _split(broker, "broker", ("amqp", "amqps")).path.removeprefix("/")
    return unquote(path) or "/"


def _split(text: str, what: str, schemes: tuple[str, ...]) -> SplitResult:
    """Take an address apart; ValueError without the address itself, which may hold a password."""
    expected = f"{schemes[0]}://… or {schemes[1]}://…"
    try:
        # The address with only the first of several hosts (`amqp://u:p@a:1,b:2/v`).
        scheme, separator, rest = text.partition("://")
        authority = re.split("[/?]", rest, maxsplit=1)[0]
        credentials, at, hosts = authority.rpartition("@")
        parts = urlsplit(
            f"{scheme}{separator}{credentials}{at}{hosts.split(',')[0]}{rest[len(authority) :]}"
        )
        well_formed = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well_formed = False
    if not well_formed:
        raise ValueError(f"{what} address: expected {expected} with a host, got something else")
    return parts


def _base(parts: SplitResult) -> str:
    """The part of the address before `/api`."""
    scheme = _SCHEMES[parts.scheme]
    given = parts.port if parts.scheme == scheme else None
    port = given or (_TLS_PORT if scheme == "https" else _PLAIN_PORT)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    path = parts.path.rstrip("/") if parts.scheme == scheme else ""
    return f"{scheme}://{host}:{port}{path.removesuffix('/api')}"


def _credentials(sources: tuple[SplitResult, ...]) -> tuple[str, str]:
    """User and password of the first source that names a user."""
    for parts in sources:
        if parts.username is not None:
            return unquote(parts.username), _password(parts)
    return "guest", "guest"


def _password(parts: SplitResult) -> str:
    """The password, from the address or from where the address says it is."""
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    try:
        if "password_file" in options:
            return Path(options["password_file"]).read_text(encoding="utf-8").rstrip("\r\n")
        if "password_env" in options:
            return os.environ[options["password_env"]]
    except (OSError, KeyError, UnicodeDecodeError) as exc:
        raise ConnectionFailed("expected the password where the broker address says it is") from exc
    return unquote(parts.password or "")
