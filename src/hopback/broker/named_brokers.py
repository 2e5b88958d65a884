"""Brokers by name: the `[[brokers]]` of a settings file, for the service and the command.

Each entry is one virtual host of one broker. The file never contains a password. An address names
the environment variable or the file with the password, or `url_env` names the variable with the
whole address.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
from msgspec import Meta, Struct, structs

from hopback.errors import HopbackError, describe_scheme

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_EMBEDDED = "embedded"
"""The address of a broker inside the process."""

_Text = Annotated[str, Meta(min_length=1, max_length=2000)]
# No colon, because a colon separates a broker's name from its virtual host.
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class BadBrokers(HopbackError):
    """The brokers of a settings file cannot be used."""

    remedy: ClassVar[str] = "Correct the entry of [[brokers]] that is named."


class BrokerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[brokers]]` entry. With `vhosts` each virtual host becomes a broker named `name:vhost`.

    `read_brokers` returns one entry per broker, with the whole address in `url`.
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
    """Read the brokers of a settings file. The service reads the other sections."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadBrokers(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadBrokers(f"{path}: expected TOML, {error}") from error
    try:
        found = msgspec.convert(document.get("brokers", ()), tuple[BrokerSettings, ...])
    except msgspec.ValidationError as error:
        raise BadBrokers(f"{path}: brokers: {error}") from error
    return name_brokers(found, environment, str(path))


def broker_path(name: str) -> str:
    """Return the path prefix of a broker at a server with several brokers."""
    return f"/brokers/{quote(name, safe=':')}"


def broker_names(entries: Iterable[BrokerSettings]) -> tuple[str, ...]:
    """Return the names of the brokers in these entries, in order."""
    return tuple(
        name
        for entry in entries
        for name in ([f"{entry.name}:{vhost}" for vhost in entry.vhosts] or [entry.name])
    )


def name_brokers(
    entries: Iterable[BrokerSettings], environment: Mapping[str, str], where: str
) -> tuple[BrokerSettings, ...]:
    """Return the brokers of these entries, in order. BadBrokers names the invalid entry."""
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
    """The entry's address with its password."""
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
    if not well_formed:  # not shown, because it may contain a password
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
