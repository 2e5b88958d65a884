"""A table that compares the documented systems. The demo page, the tutorial and the README show it."""

from __future__ import annotations

from dataclasses import astuple, dataclass

HEADINGS = (
    "system",
    "waits",
    "leaves by",
    "returns by",
    "attempts",
    "gives up by",
    "dead-letter queue",
    "possible loss if a node dies",
    "hardened form",
)


@dataclass(frozen=True, slots=True)
class Compared:
    """How a system handles failures, according to its document."""

    name: str
    waits: str
    leaves_by: str
    returns_by: str
    attempts: str
    gives_up_by: str
    dead_letter_queue: str
    possible_loss: str
    hardened: str

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table row in the order of `HEADINGS`."""
        return astuple(self)


COMPARISON = (
    Compared(
        "ratatoskr",
        "5 s",
        "reject",
        "default exchange, to its queue",
        "4",
        "publish to the fanout `{queue}.dlq`",
        "`{queue}.dlq`, one per queue",
        "on the way out and back",
        "publishes retries",
    ),
    Compared(
        "freeflow",
        "30 s, 5 min, 30 min",
        "publish to `freeflow.events.retry`",
        "topic exchange, also to other queues",
        "4",
        "reject to `freeflow.events.dlx`",
        "`freeflow.events.dlq`, one for all",
        "on the way back and into the dead-letter queue, or with the disk",
        "quorum queues, returns to the failed queue only, publishes dead letters",
    ),
    Compared(
        "event-bus",
        "5 s",
        "reject",
        "default exchange, to its queue",
        "11",
        "publish to the dead-letter queue",
        "`{prefix}.dlq.{service}`, one per service",
        "on the way out and back, or with the disk",
        "quorum queues, publishes retries",
    ),
    Compared(
        "raffle",
        "10 s",
        "publish to `raffle_retry_exchange`",
        "direct exchange, to its queue",
        "4",
        "reject to `raffle_dlx`",
        "`raffle_dlq`, one",
        "on the way back and into the dead-letter queue, or with the disk",
        "quorum queues, returns by the default exchange, publishes dead letters",
    ),
    Compared(
        "file-pipeline",
        "15 s",
        "reject",
        "default exchange, to its queue",
        "3",
        "publish to `dlq.q.X`",
        "`q.X.dlq`, one per queue",
        "on the way out and back, or with the disk",
        "quorum queues, publishes retries",
    ),
)
"""The rows of the table. The shortest system is first."""
