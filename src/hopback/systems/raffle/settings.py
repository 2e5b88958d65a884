"""The settings of the raffle: the variables of its document, with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hopback.systems.language import Language
from hopback.systems.settings import Variables
from hopback.topology import Topology

_MOST_ROWS = 10_000
"""Rows of one statement. PostgreSQL accepts 65,535 parameters, five to each row."""


@dataclass(frozen=True, slots=True)
class Batching:
    """Batches of a consumer. Processors parse, batchers insert."""

    size: int = 1000
    timeout_ms: int = 1000
    processors: int = 8
    batchers: int = 2


@dataclass(frozen=True, slots=True)
class RaffleSettings:
    """The environment variables of the raffle."""

    database: str = "sqlite:///raffle.db"
    hardened: bool = False
    retry_ttl_ms: int = 10_000
    max_retries: int = 3
    users: Batching = Batching()
    dlq: Batching = Batching(500, 1000, 1, 1)
    language: Language = "en"

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> RaffleSettings:
        """Read environment variables. SettingsError names all wrong ones."""
        found, plain = Variables(variables), cls()
        settings = cls(
            found.text("DATABASE_URL", plain.database),
            found.flag("HARDENED"),
            found.number("RETRY_TTL_MS", plain.retry_ttl_ms, least=1),
            found.number("MAX_RETRIES", plain.max_retries, most=1000),
            _batching(found, "USERS", plain.users),
            _batching(found, "DLQ", plain.dlq),
            found.language("LANGUAGE_OF_ANSWERS"),
        )
        found.check()
        return settings

    def topology(self) -> Topology:
        """Return the documented design with these parameters."""
        from hopback.designs import raffle

        return raffle(
            hardened=self.hardened, retry_ttl_ms=self.retry_ttl_ms, max_retries=self.max_retries
        )


def _batching(found: Variables, prefix: str, plain: Batching) -> Batching:
    return Batching(
        found.number(f"{prefix}_BATCH_SIZE", plain.size, least=1, most=_MOST_ROWS),
        found.number(f"{prefix}_BATCH_TIMEOUT_MS", plain.timeout_ms),
        found.number(f"{prefix}_PROC_CONCURRENCY", plain.processors, least=1, most=1000),
        found.number(f"{prefix}_BATCH_CONCURRENCY", plain.batchers, least=1, most=100),
    )
