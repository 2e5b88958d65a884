"""The registered services: those of `SERVICES`, or those of a file that may change at run time.

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
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopback.designs import event_bus
from hopback.errors import InvalidDeclaration, InvalidTopology
from hopback.runtime import PushTarget
from hopback.systems.event_bus.settings import EventBusSettings
from hopback.systems.settings import SettingsError
from hopback.topology import Topology

_LOG = logging.getLogger("hopback.systems.event_bus")
_KNOWN = {"url", "headers", "bearer_env", "secret_env"}
"""The keys of a service. Tokens and secrets come from environment variables, not from the file."""


class ServiceRegistry:
    """The present services and their endpoints.

    If the changed file cannot be read, that is logged once, and the services stay as they were.
    """

    def __init__(self, settings: EventBusSettings, variables: Mapping[str, str]) -> None:
        self._settings = settings
        self._variables = variables
        self._stamp: tuple[int, int] | None = None
        self._targets = {
            service: PushTarget(url, settings.timeout_ms / 1000, settings.concurrency)
            for service, url in settings.endpoints.items()
        }
        if settings.services_file is not None:
            self._stamp = _stamp(settings.services_file)
            self._targets = self._read(settings.services_file)

    def targets(self) -> Mapping[str, PushTarget]:
        """Return every service with its endpoint. Reads the file again if it has changed."""
        file = self._settings.services_file
        if file is not None and (now := _stamp(file)) != self._stamp:
            self._stamp = now
            try:
                self._targets = self._read(file)
            except SettingsError as error:
                _LOG.error("the services stay as they are: %s", error)
        return self._targets

    def topology(self) -> Topology:
        """Return the documented design for the present services."""
        return event_bus(tuple(self.targets()), hardened=self._settings.hardened)

    def _read(self, file: Path) -> dict[str, PushTarget]:
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(f"SERVICES_FILE: {file} cannot be read: {error}") from None
        targets = {service: self._target(service, entry) for service, entry in found.items()}
        try:
            event_bus(tuple(targets))
        except InvalidTopology as error:
            raise SettingsError(f"SERVICES_FILE: {error}") from None
        return targets

    def _target(self, service: str, entry: Any) -> PushTarget:
        where = f"SERVICES_FILE: [{service}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
            raise SettingsError(f'{where}: expected url = "https://…"')
        if unknown := sorted(entry.keys() - _KNOWN):
            expected = ", ".join(sorted(_KNOWN))
            raise SettingsError(f"{where}: expected {expected}, got {unknown[0]!r}")
        headers = entry.get("headers", {})
        if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
            raise SettingsError(f"{where}: headers: expected a table of names and texts")
        try:
            return PushTarget(
                entry["url"],
                self._settings.timeout_ms / 1000,
                self._settings.concurrency,
                headers=headers,
                bearer=self._secret(where, entry, "bearer_env"),
                secret=self._secret(where, entry, "secret_env"),
            )
        except InvalidDeclaration as error:
            raise SettingsError(f"{where}: {error.problems[0]}") from None

    def _secret(self, where: str, entry: Mapping[str, Any], name: str) -> str:
        """Return the value of the variable that an entry names, or an empty text."""
        variable = entry.get(name, "")
        found = self._variables.get(variable, "") if isinstance(variable, str) else ""
        if variable and not found:
            raise SettingsError(
                f"{where}: {name}: expected a variable that is set, got {variable!r}"
            )
        return found


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return modification time and size of a file, or None if it does not exist."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
