"""The settings of the event bus: its services and their endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hopback.designs.event_bus import SERVICES
from hopback.systems.settings import SettingsError, Variables

_RECEIVER = "http://127.0.0.1:8001"
_SHORTEST_TOKEN = 16
"""Characters of a token. A shorter one could be guessed over the network."""


def endpoints_at(receiver: str, services: tuple[str, ...] = SERVICES) -> dict[str, str]:
    """Return the endpoints of services that the sample receiver plays."""
    return {service: f"{receiver}/{service}/events" for service in services}


@dataclass(frozen=True, slots=True)
class EventBusSettings:
    endpoints: Mapping[str, str] = field(default_factory=lambda: endpoints_at(_RECEIVER))
    hardened: bool = False
    timeout_ms: int = 10_000
    concurrency: int = 20
    services_file: Path | None = None
    """A file of services that may change at run time. It replaces `endpoints`."""
    publish_tokens: tuple[str, ...] = field(default=(), repr=False)
    """Bearer tokens of publishers. Without tokens every client may publish."""

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> EventBusSettings:
        """Read the settings from environment variables. SettingsError names all wrong ones.

        `SERVICES` is a list of `name=url`. A name without an address is a service of the sample
        receiver. `SERVICES_FILE` replaces `SERVICES`.
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
            tuple(filter(None, map(str.strip, found.text("PUBLISH_TOKENS", "").split(",")))),
        )
        found.check()
        if any(len(token) < _SHORTEST_TOKEN for token in settings.publish_tokens):
            # The message does not contain the value, because it is a secret.
            raise SettingsError(
                f"PUBLISH_TOKENS: expected tokens of at least {_SHORTEST_TOKEN} characters"
            )
        return settings
