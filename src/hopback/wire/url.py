"""AMQP URLs: `amqp://user:password@host:port,host2/vhost?option=value`.

| option | meaning | default |
|---|---|---|
| `heartbeat` | seconds, 0 for no heartbeats | 60 |
| `connection_timeout` | seconds for one host, handshake included | 10 |
| `channel_max`, `frame_max` | proposed limits | 2047, 131072 |
| `auth_mechanism` | `plain` or `external` | plain |
| `password_file`, `password_env` | file or environment variable with the password | |
| `cacertfile`, `certfile`, `keyfile` | PEM files for amqps | the system's authorities |
| `verify` | `verify_peer`, or `verify_none` (insecure) | verify_peer |
| `server_name_indication` | the name to verify, or `disable` | the host |

Unknown options are errors. The vhost is `/` if the path is missing or empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from hopback.errors import Problem, describe_scheme
from hopback.wire.handshake import Credentials, secret_from_environment, secret_from_file

_PORTS = {"amqp": 5672, "amqps": 5671}
# Remove line breaks, like `urlsplit` does.
_LINE_ENDS = dict.fromkeys(map(ord, "\t\r\n"))
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<name>[^:\[\]]*))(?::(?P<port>\d{1,5}))?")
_TLS_OPTIONS = ("cacertfile", "certfile", "keyfile", "verify", "server_name_indication")
_OPTIONS = frozenset(
    {
        "heartbeat",
        "connection_timeout",
        "channel_max",
        "frame_max",
        "auth_mechanism",
        "password_file",
        "password_env",
        *_TLS_OPTIONS,
    }
)


class InvalidUrl(ValueError):
    """Raised if a URL is invalid. The text does not contain the password."""

    def __init__(self, expected: str, got: str, *, option: str = "") -> None:
        self.problem: Problem = Problem(
            f"broker URL: {option}" if option else "broker URL", expected, got
        )
        super().__init__(str(self.problem))


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS settings. Verification is enabled by default."""

    cacertfile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True
    server_name: str | None = None
    """The expected name of the certificate. Defaults to the host. If empty, no name is sent."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker. The password is not included in `str()`."""

    hosts: tuple[tuple[str, int], ...] = (("localhost", 5672),)
    virtual_host: str = "/"
    credentials: Credentials = field(default_factory=Credentials)
    tls: TlsOptions | None = None
    heartbeat: int = 60
    connection_timeout: float = 10.0
    channel_max: int = 2047
    frame_max: int = 131_072

    def __str__(self) -> str:
        scheme = "amqps" if self.tls else "amqp"
        places = ",".join(map(_place, self.hosts))
        vhost = "" if self.virtual_host == "/" else self.virtual_host
        return f"{scheme}://{places}/{vhost}"


def _place(host: tuple[str, int]) -> str:
    name, port = host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def parse_url(url: str) -> Address:
    """Parse a URL. Raises InvalidUrl if it is invalid."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _PORTS:
        hint = ", which is that of the management API" if scheme in ("http", "https") else ""
        raise InvalidUrl(
            "amqp://… or amqps://…, such as amqp://guest:guest@localhost:5672/",
            f"{describe_scheme(url)}{hint}",
        )
    # `urlsplit` only supports a single host. Since Python 3.13 it rejects lists that contain an
    # IPv6 address.
    before, _, fragment = rest.translate(_LINE_ENDS).partition("#")
    if fragment:
        raise InvalidUrl("no '#'", "one. Write it as %23")
    place, _, query = before.partition("?")
    authority, _, path = place.partition("/")
    user_part, _, host_part = authority.rpartition("@")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise InvalidUrl(f"no options except {', '.join(sorted(_OPTIONS))}", ", ".join(unknown))
    hosts = tuple(_host(part, _PORTS[scheme]) for part in host_part.split(","))
    if "/" in path:
        raise InvalidUrl("one virtual host", f"{path!r}. Write '/' as %2F")
    return Address(
        hosts=hosts,
        virtual_host=unquote(path) or "/",
        credentials=_credentials(user_part, options),
        tls=_tls(scheme, options),
        heartbeat=_integer(options, "heartbeat", 60, 0, 65_535),
        connection_timeout=_integer(options, "connection_timeout", 10, 1, 3600),
        channel_max=_integer(options, "channel_max", 2047, 1, 65_535),
        frame_max=_integer(options, "frame_max", 131_072, 4096, 4 * 1024 * 1024),
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    if found is None:
        raise InvalidUrl("host or host:port", repr(text))
    port = int(found["port"] or default_port)
    if not 0 < port < 65_536:
        raise InvalidUrl("a port from 1 to 65535", str(port))
    name = found["six"] or unquote(found["name"]) or "localhost"
    _check_name(name)
    return name, port


def _check_name(host: str, option: str = "") -> None:
    """Raise InvalidUrl if `getaddrinfo` or TLS could not encode a host name."""
    try:
        host.encode("idna")
    except UnicodeError:
        expected = "a valid host name, with labels of 1 to 63 characters"
        raise InvalidUrl(expected, repr(host), option=option) from None


def _integer(options: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise InvalidUrl(f"{low} to {high}", repr(text), option=name)
    return int(text)


def _credentials(user_part: str, options: dict[str, str]) -> Credentials:
    user, has_password, password = user_part.partition(":")
    mechanism = options.get("auth_mechanism", "plain").upper()
    if mechanism not in ("PLAIN", "EXTERNAL"):
        raise InvalidUrl("plain or external", repr(mechanism), option="auth_mechanism")
    if mechanism == "EXTERNAL":
        return Credentials(unquote(user), mechanism=mechanism)
    name = unquote(user) or "guest"
    if "password_file" in options:
        return Credentials(name, secret_from_file(options["password_file"]))
    if "password_env" in options:
        return Credentials(name, secret_from_environment(options["password_env"]))
    plain = unquote(password) if has_password else "guest"
    return Credentials(name, lambda: plain)


def _tls(scheme: str, options: dict[str, str]) -> TlsOptions | None:
    if scheme == "amqp":
        if named := [name for name in _TLS_OPTIONS if name in options]:
            raise InvalidUrl(f"amqps:// with {', '.join(named)}", "amqp://")
        return None
    verify = options.get("verify", "verify_peer")
    if verify not in ("verify_peer", "verify_none"):
        raise InvalidUrl("verify_peer or verify_none", repr(verify), option="verify")
    name = options.get("server_name_indication")
    _check_name(name or "", "server_name_indication")
    return TlsOptions(
        cacertfile=options.get("cacertfile"),
        certfile=options.get("certfile"),
        keyfile=options.get("keyfile"),
        verify=verify == "verify_peer",
        server_name="" if name == "disable" else name,
    )
