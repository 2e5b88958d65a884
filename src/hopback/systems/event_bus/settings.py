"""The event bus's settings: the services and where each of them takes events."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hopback.designs.event_bus import SERVICES
from hopback.systems.settings import Variables

if TYPE_CHECKING:
    from collections.abc import Mapping

_RECEIVER = "http://127.0.0.1:8001"


def endpoints_at(receiver: str, services: tuple[str, ...] = SERVICES) -> dict[str, str]:
    """The endpoints of services that the sample receiver plays."""
    return {service: f"{receiver}/{service}/events" for service in services}


@dataclass(frozen=True, slots=True)
class EventBusSettings:
    """Everything that the event bus is told by its environment."""

    endpoints: Mapping[str, str] = field(default_factory=lambda: endpoints_at(_RECEIVER))
    hardened: bool = False
    timeout_ms: int = 10_000
    concurrency: int = 20
    services_file: Path | None = None
    """Where the services are registered instead, and may change while it runs."""

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> EventBusSettings:
        """From environment variables; SettingsError names all that are wrong.

        `SERVICES` is a list of `name=url`; a name alone is a service of the sample receiver.
        `SERVICES_FILE` stands in its place.
        """
        found = Variables(variables)
        receiver = found.text("RECEIVER_URL", _RECEIVER).rstrip("/")
        endpoints: dict[str, str] = {}
        for entry in found.names("SERVICES", ",".join(SERVICES)):
            service, _, url = entry.partition("=")
            if service in endpoints:
                found.refuse("SERVICES", "each service once")
            endpoints[service] = url or endpoints_at(receiver, (service,))[service]
        file = found.text("SERVICES_FILE", "")
        if file and found.text("SERVICES", ""):
            found.refuse("SERVICES_FILE", "either SERVICES or SERVICES_FILE")
        settings = cls(
            endpoints,
            found.flag("HARDENED"),
            found.number("PUSH_TIMEOUT_MS", 10_000, least=1),
            found.number("PUSH_CONCURRENCY", 20, least=1, most=1000),
            Path(file) if file else None,
        )
        found.check()
        return settings
