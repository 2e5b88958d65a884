"""Build a broker URL from the settings of another library."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping


def broker_url(
    host: str,
    port: int,
    *,
    user: str | None = None,
    password: str | None = None,
    virtual_host: str = "/",
    tls: bool = False,
    options: Mapping[str, object] | None = None,
) -> str:
    """Build a URL from connection settings. Settings that are None are omitted."""
    known = {name: value for name, value in (options or {}).items() if value is not None}
    query = f"?{urlencode(known)}" if known else ""
    secret = "" if password is None else f":{quote(password, safe='')}"
    login = "" if user is None else f"{quote(user, safe='')}{secret}@"
    place = f"[{host}]" if ":" in host else host
    scheme = "amqps" if tls else "amqp"
    return f"{scheme}://{login}{place}:{port}/{quote(virtual_host, safe='')}{query}"
