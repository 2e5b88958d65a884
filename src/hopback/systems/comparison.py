"""The documented systems side by side: one table for the demo page, the tutorial and the README."""

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
    """The failure handling of a system, as its document describes it."""

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
        """Return the texts in the order of the headings."""
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
"""The shortest system first."""
