"""The registered services. They are listed in `SERVICES`, or in a file that may change at run time:

```toml
[wms-orders]
url = "https://orders.internal/events"
bearer_env = "ORDERS_TOKEN"
secret_env = "ORDERS_SECRET"
headers = {x-tenant = "north"}
```
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hopback.designs import event_bus
from hopback.designs.event_bus import prefix_of
from hopback.errors import InvalidDeclaration, InvalidTopology
from hopback.runtime import PushTarget
from hopback.systems.event_bus.settings import EventBusSettings
from hopback.systems.settings import SettingsError
from hopback.topology import Topology

_LOG = logging.getLogger("hopback.systems.event_bus")


def queue_of(service: str) -> str:
    """Return the queue of a service, for example `wms.queue.wms-orders`."""
    return f"{prefix_of(service)}.queue.{service}"


class _ServiceEntry(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of the file. It contains the names of environment variables instead of the token and
    secret.
    """

    url: str
    headers: dict[str, str] = {}
    bearer_env: str = ""
    secret_env: str = ""


class ServiceRegistry:
    """The current services and their endpoints.

    If a changed file cannot be read, the error is logged once and the services stay the same.
    """

    def __init__(self, settings: EventBusSettings, variables: Mapping[str, str]) -> None:
        self._settings = settings
        self._variables = variables
        self._stamp: tuple[int, int] | None = None
        if settings.services_file is not None:
            self._stamp = _stamp(settings.services_file)
            self._targets = self._read(settings.services_file)
        else:
            entries = {service: _ServiceEntry(url) for service, url in settings.endpoints.items()}
            self._targets = self._make_targets("SERVICES or RECEIVER_URL", entries)

    def targets(self) -> Mapping[str, PushTarget]:
        """Return the endpoints of all services. The file is read again if it has changed."""
        file = self._settings.services_file
        if file is not None and (stamp := _stamp(file)) != self._stamp:
            self._stamp = stamp
            try:
                self._targets = self._read(file)
            except SettingsError as error:
                _LOG.error("the services are not changed: %s", error)
        return self._targets

    def topology(self) -> Topology:
        """Return the documented design for the current services."""
        return event_bus(tuple(self.targets()), hardened=self._settings.hardened)

    def _read(self, file: Path) -> dict[str, PushTarget]:
        try:
            entries = msgspec.toml.decode(file.read_bytes(), type=dict[str, _ServiceEntry])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SettingsError(f"SERVICES_FILE: {file}: {error}") from None
        return self._make_targets("SERVICES_FILE", entries)

    def _make_targets(
        self, source: str, entries: Mapping[str, _ServiceEntry]
    ) -> dict[str, PushTarget]:
        try:
            event_bus(tuple(entries))
        except InvalidTopology as error:
            raise SettingsError(f"{source}: {error}") from None
        return {
            service: self._make_target(f"{source}: [{service}]", entry)
            for service, entry in entries.items()
        }

    def _make_target(self, place: str, entry: _ServiceEntry) -> PushTarget:
        named = {"bearer": entry.bearer_env, "secret": entry.secret_env}
        secrets = {each: self._variables.get(name, "") for each, name in named.items() if name}
        if not all(secrets.values()):
            raise SettingsError(
                f"{place}: bearer_env and secret_env: expected a variable that is set"
            )
        seconds, most = self._settings.timeout_ms / 1000, self._settings.concurrency
        try:
            return PushTarget(entry.url, seconds, most, entry.headers, **secrets)
        except InvalidDeclaration as error:
            raise SettingsError(f"{place}: {error.problems[0]}") from None


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return the modification time and the size of a file, or None if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
