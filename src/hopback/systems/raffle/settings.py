"""The settings of the raffle. The document specifies the variables and their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from hopback.designs import raffle
from hopback.systems.language import Language
from hopback.systems.settings import EnvironmentSettings, variable
from hopback.topology import Topology

_MOST_ROWS = 10_000
"""The maximum number of rows in a batch. A larger transaction would delay the acks for too long."""


@dataclass(frozen=True, slots=True)
class Batching:
    """The batches of a consumer. Processors parse messages and batchers insert the rows."""

    size: int = variable("BATCH_SIZE", 1000, least=1, most=_MOST_ROWS)
    timeout_ms: int = variable("BATCH_TIMEOUT_MS", 1000)
    processors: int = variable("PROC_CONCURRENCY", 8, least=1, most=1000)
    batchers: int = variable("BATCH_CONCURRENCY", 2, least=1, most=100)


@dataclass(frozen=True, slots=True)
class RaffleSettings(EnvironmentSettings):
    """The environment variables of the raffle."""

    database: str = variable("DATABASE_URL", "sqlite:///raffle.db")
    hardened: bool = variable("HARDENED", False)
    retry_ttl_ms: int = variable("RETRY_TTL_MS", 10_000, least=1)
    max_retries: int = variable("MAX_RETRIES", 3, most=1000)
    users: Batching = variable("USERS_", Batching())
    dlq: Batching = variable("DLQ_", Batching(500, 1000, 1, 1))
    language: Language = variable("LANGUAGE_OF_ANSWERS", "en", choices=("en", "pt"))

    def topology(self) -> Topology:
        """Return the documented design with the configured parameters."""
        return raffle(
            hardened=self.hardened, retry_ttl_ms=self.retry_ttl_ms, max_retries=self.max_retries
        )
