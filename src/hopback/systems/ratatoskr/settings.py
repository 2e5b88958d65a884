"""The settings of Ratatoskr: the parameters of its document. The document has no defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hopback.systems.settings import Variables
from hopback.topology import QueueType, Topology


@dataclass(frozen=True, slots=True)
class RatatoskrSettings:
    """The environment variables of Ratatoskr."""

    database: str = "sqlite:///ratatoskr.db"
    hardened: bool = False
    queue: str = "my-service.events"
    exchange: str = "ratatoskr.events"
    routing_keys: tuple[str, ...] = ("#",)
    retry_delay_ms: int = 5_000
    max_retries: int = 3
    queue_type: QueueType = QueueType.QUORUM

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> RatatoskrSettings:
        """Read environment variables. SettingsError names all wrong ones."""
        found, plain = Variables(variables), cls()
        kind = found.text("RATATOSKR_QUEUE_TYPE", plain.queue_type)
        if kind not in (QueueType.QUORUM, QueueType.CLASSIC):
            found.refuse("RATATOSKR_QUEUE_TYPE", "quorum or classic")
        settings = cls(
            found.text("DATABASE_URL", plain.database),
            found.flag("HARDENED"),
            found.text("RATATOSKR_QUEUE", plain.queue),
            found.text("RATATOSKR_EXCHANGE", plain.exchange),
            found.names("RATATOSKR_ROUTING_KEYS", ",".join(plain.routing_keys)),
            found.number("RATATOSKR_RETRY_DELAY_MS", plain.retry_delay_ms, least=1),
            found.number("RATATOSKR_MAX_RETRIES", plain.max_retries, most=1000),
            QueueType.CLASSIC if kind == QueueType.CLASSIC else QueueType.QUORUM,
        )
        found.check()
        return settings

    def topology(self) -> Topology:
        """Return the documented design with these parameters."""
        from hopback.designs import ratatoskr

        return ratatoskr(
            self.queue,
            hardened=self.hardened,
            exchange=self.exchange,
            routing_keys=self.routing_keys,
            retry_delay_ms=self.retry_delay_ms,
            max_retries=self.max_retries,
            queue_type=self.queue_type,
        )
