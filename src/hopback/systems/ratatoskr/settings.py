"""The settings of Ratatoskr. The document specifies the parameters but no defaults."""

from __future__ import annotations

from dataclasses import dataclass

from hopback.designs import ratatoskr
from hopback.systems.settings import EnvironmentSettings, variable
from hopback.topology import QueueType, Topology


@dataclass(frozen=True, slots=True)
class RatatoskrSettings(EnvironmentSettings):
    """The environment variables of Ratatoskr."""

    database: str = variable("DATABASE_URL", "sqlite:///ratatoskr.db")
    hardened: bool = variable("HARDENED", False)
    queue: str = variable("RATATOSKR_QUEUE", "my-service.events")
    exchange: str = variable("RATATOSKR_EXCHANGE", "ratatoskr.events")
    routing_keys: tuple[str, ...] = variable("RATATOSKR_ROUTING_KEYS", ("#",))
    retry_delay_ms: int = variable("RATATOSKR_RETRY_DELAY_MS", 5_000, least=1)
    max_retries: int = variable("RATATOSKR_MAX_RETRIES", 3, most=1000)
    queue_type: QueueType = variable(
        "RATATOSKR_QUEUE_TYPE", QueueType.QUORUM, choices=(QueueType.QUORUM, QueueType.CLASSIC)
    )

    def topology(self) -> Topology:
        """Return the documented design with the configured parameters."""
        return ratatoskr(
            self.queue,
            hardened=self.hardened,
            exchange=self.exchange,
            routing_keys=self.routing_keys,
            retry_delay_ms=self.retry_delay_ms,
            max_retries=self.max_retries,
            queue_type=self.queue_type,
        )
