"""Named brokers, as defined by `[[brokers]]` in a settings file.

They are used by the service and the command line. Each entry is a virtual host of a broker.
Passwords are not allowed in the file. The address contains the name of an environment variable or
of a file with the password. Alternatively, `url_env` is the name of a variable with the whole
address.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
from msgspec import Meta, Struct, structs

from hopback.errors import HopbackError, describe_scheme
from hopback.mismatches import MismatchFinder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_EMBEDDED = "embedded"
"""Address of the embedded broker in the same process."""

_Text = Annotated[str, Meta(min_length=1, max_length=2000)]
# No colon, because it separates the name of a broker from its virtual host.
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class BadBrokers(HopbackError):
    """Raised when the brokers of a settings file are invalid."""

    remedy: ClassVar[str] = "Correct the entry of [[brokers]] that is named."


class BrokerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `[[brokers]]`. If it has `vhosts`, there is a broker named `name:vhost` for each
    of them.

    `read_brokers` returns an entry per broker. Its `url` contains the complete address.
    """

    name: _Name
    url: str = ""
    url_env: str = ""
    vhosts: tuple[_Text, ...] = ()
    management: str = ""
    amqp_only: bool = False
    topologies: tuple[_Text, ...] = ()
    hardened: bool = False
    dlq: tuple[_Text, ...] = ()


def read_brokers(path: Path, environment: Mapping[str, str]) -> tuple[BrokerSettings, ...]:
    """Read the brokers in a settings file. Other sections are read by the service."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadBrokers(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadBrokers(f"{path}: expected valid TOML: {error}") from error
    try:
        found = msgspec.convert(document.get("brokers", ()), tuple[BrokerSettings, ...])
    except msgspec.ValidationError as error:
        finder = MismatchFinder(shows_values=False)
        problems = finder.find(tuple[BrokerSettings, ...], document["brokers"], "brokers")
        lines = "; ".join(f"{at}: expected {what}" for at, what in problems)
        raise BadBrokers(f"{path}: {lines}") from error
    return name_brokers(found, environment, str(path))


def broker_path(name: str) -> str:
    """Return the path prefix for a broker if the server has more than one."""
    return f"/brokers/{quote(name, safe=':')}"


def broker_names(entries: Iterable[BrokerSettings]) -> tuple[str, ...]:
    """Return the names of all brokers, in order."""
    return tuple(
        name
        for entry in entries
        for name in ([f"{entry.name}:{vhost}" for vhost in entry.vhosts] or [entry.name])
    )


def name_brokers(
    entries: Iterable[BrokerSettings], environment: Mapping[str, str], where: str
) -> tuple[BrokerSettings, ...]:
    """Return all brokers, in order. Raises BadBrokers with the name of the invalid entry."""
    found: dict[str, BrokerSettings] = {}
    for entry in entries:
        url = _address(entry, environment, where)
        parts = urlsplit(url)
        paths = [f"/{quote(vhost, safe='')}" for vhost in entry.vhosts]
        addresses = [urlunsplit(parts._replace(path=path)) for path in paths] or [url]
        for name, address in zip(broker_names([entry]), addresses, strict=True):
            if name in found:
                raise BadBrokers(f"{where}: brokers: expected each name once, got {name!r} twice")
            found[name] = structs.replace(entry, name=name, url=address, url_env="", vhosts=())
    return tuple(found.values())


def _address(entry: BrokerSettings, environment: Mapping[str, str], where: str) -> str:
    """Return the address of the entry, including the password."""
    here = f"{where}: broker {entry.name!r}"
    if bool(entry.url) == bool(entry.url_env):
        said = "both" if entry.url else "neither"
        raise BadBrokers(f"{here}: expected either url or url_env, got {said}")
    if entry.url == _EMBEDDED and not entry.vhosts:
        return _EMBEDDED
    url = entry.url or environment.get(entry.url_env, "")
    if not url:
        raise BadBrokers(f"{here}: url_env: expected an address in {entry.url_env}, it is not set")
    try:
        parts = urlsplit(url)
        well_formed = parts.scheme in ("amqp", "amqps") and bool(parts.hostname)
        password = parts.password
    except ValueError:
        well_formed, password = False, None
    if not well_formed:  # don't show it, because it may contain a password
        raise BadBrokers(f"{here}: expected amqp://… or amqps://…, got {describe_scheme(url)}")
    if entry.url and password:
        raise BadBrokers(
            f"{here}: expected no password in url. Add ?password_env=VARIABLE or ?password_file=FILE"
        )
    if "@" in entry.management:
        raise BadBrokers(
            f"{here}: management: expected no user and password. Those of url are used"
        )
    if entry.vhosts and parts.path.strip("/"):
        raise BadBrokers(f"{here}: expected the virtual host in url or in vhosts, got both")
    return url
