"""The settings of the event bus, i.e. its services and their endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopback.designs.event_bus import SERVICES
from hopback.systems.settings import EnvironmentSettings, variable

_SHORTEST_TOKEN = 16
"""The minimum number of characters of a token. Shorter ones could be guessed over the network."""


def _read_tokens(text: str) -> tuple[str, ...]:
    found = tuple(filter(None, map(str.strip, text.split(","))))
    # A list without tokens must not allow every client to publish.
    if not found or any(len(token) < _SHORTEST_TOKEN for token in found):
        raise ValueError(f"tokens of at least {_SHORTEST_TOKEN} characters")
    return found


@dataclass(frozen=True, slots=True)
class EventBusSettings(EnvironmentSettings):
    """The environment variables of the event bus."""

    services: tuple[str, ...] = variable("SERVICES", SERVICES)
    """Entries like `name=url`. A name without a URL is a service of the sample receiver."""
    receiver: str = variable("RECEIVER_URL", "http://127.0.0.1:8001")
    hardened: bool = variable("HARDENED", False)
    timeout_ms: int = variable("PUSH_TIMEOUT_MS", 10_000, least=1)
    concurrency: int = variable("PUSH_CONCURRENCY", 20, least=1, most=1000)
    services_file: Path | None = variable("SERVICES_FILE", None, read=Path)
    """A file with services that may change at run time. It is used instead of `services`."""
    publish_tokens: tuple[str, ...] = variable("PUBLISH_TOKENS", (), read=_read_tokens, secret=True)
    """The bearer tokens of publishers. If there are none, every client may publish."""

    @property
    def endpoints(self) -> dict[str, str]:
        """The endpoints of the services that `SERVICES` lists."""
        named = (entry.partition("=") for entry in self.services)
        sample = self.receiver.rstrip("/")
        return {service: url or f"{sample}/{service}/events" for service, _, url in named}

    def problems(self, variables: Mapping[str, str]) -> Sequence[str]:
        """Return an error if a service is listed twice, or if both SERVICES and SERVICES_FILE are
        set.
        """
        if len(self.endpoints) < len(self.services):
            return [f"SERVICES: expected each service once, got {variables.get('SERVICES')!r}"]
        if self.services_file and variables.get("SERVICES", "").strip():
            return ["SERVICES_FILE: expected either SERVICES or SERVICES_FILE, got both"]
        return ()
