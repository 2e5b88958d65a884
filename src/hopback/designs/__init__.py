"""Predefined topologies.

The package contains Hopback's recommended design and five documented systems. Each of these systems
has a faithful and a hardened form. `DESIGNS` contains all designs by name.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.designs.design import (
    Design,
    DesignParameter,
    delays_ms,
    duration_ms,
    names,
    queue_type,
    whole_number,
)
from hopback.designs.event_bus import event_bus
from hopback.designs.file_pipeline import REDRIVE_COMPLETED, file_pipeline
from hopback.designs.freeflow import AUDIT_KEYS, QUEUES, TIERS_MS, freeflow, queues_of, tiers_of
from hopback.designs.raffle import raffle
from hopback.designs.ratatoskr import ratatoskr
from hopback.designs.recommended import recommended

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DESIGNS",
    "Design",
    "DesignParameter",
    "event_bus",
    "file_pipeline",
    "freeflow",
    "raffle",
    "ratatoskr",
    "recommended",
]

_NAMES = "names separated by commas"
_NUMBER = "a whole number"
_DELAY = "a duration like 5s, 1m30s or 250ms"

_EVERY = (
    Design(
        "ratatoskr",
        "quorum queues with a broker-side retry loop and a fanout into the dead-letter queue",
        ratatoskr,
        (
            DesignParameter("queue", "my-service.events", "a queue name", str, "the main queue"),
            DesignParameter(
                "exchange",
                "ratatoskr.events",
                "an exchange name",
                str,
                "the exchange that feeds it",
            ),
            DesignParameter("routing_keys", "#", _NAMES, names, "the binding keys"),
            DesignParameter(
                "retry_delay", "5s", _DELAY, duration_ms, "the delay", argument="retry_delay_ms"
            ),
            DesignParameter(
                "max_retries", "3", _NUMBER, whole_number, "retries after the first run"
            ),
            DesignParameter(
                "queue_type", "quorum", "quorum or classic", queue_type, "the type of all queues"
            ),
        ),
    ),
    Design(
        "freeflow",
        "domain events with retry tiers of 30 s, 5 min and 30 min and one dead-letter queue",
        freeflow,
        (
            DesignParameter(
                "domains",
                ",".join(domain for served in QUEUES.values() for domain in served),
                "words separated by commas",
                lambda text: queues_of(names(text)),
                "the domains, each with its three retry queues",
                argument="queues",
            ),
            DesignParameter(
                "tiers",
                ",".join(TIERS_MS),
                f"{_DELAY}, each once, separated by commas",
                lambda text: tiers_of(names(text)),
                "the delays, whose names are part of the queue names",
                argument="tiers_ms",
            ),
            DesignParameter(
                "audit",
                ",".join(AUDIT_KEYS),
                _NAMES,
                names,
                "the binding keys of the audit queue (# records everything)",
                argument="audit_keys",
            ),
        ),
    ),
    Design(
        "event-bus",
        "a fanout to services by HTTP, ten retries of 5 s, a dead-letter queue for each service",
        event_bus,
        (DesignParameter("services", "wms-cincout,wms-orders", _NAMES, names, "the services"),),
        codes={"delivery.parked.exhausted": "RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED"},
    ),
    Design(
        "raffle",
        "users inserted in batches, three retries of 10 s, one dead-letter queue",
        raffle,
        (
            DesignParameter("retry_ttl_ms", "10000", _NUMBER, whole_number, "the delay, in ms"),
            DesignParameter(
                "max_retries", "3", _NUMBER, whole_number, "retries after the first run"
            ),
        ),
    ),
    Design(
        "file-pipeline",
        "seven consumers, each with its own 15 s retry queue and dead-letter queue",
        file_pipeline,
        stamps_redrives=True,
        completion=REDRIVE_COMPLETED,
    ),
    Design(
        "recommended",
        "Hopback's design for new queues: any number of tiers, direct return, no losses",
        recommended,
        (
            DesignParameter("queue", "orders", "a queue name", str, "the main queue"),
            DesignParameter(
                "tiers",
                "30s,5m,30m",
                f"{_DELAY}, separated by commas",
                delays_ms,
                "the delays",
                argument="tiers_ms",
            ),
        ),
        documented=False,
    ),
)

DESIGNS: Mapping[str, Design] = MappingProxyType({design.name: design for design in _EVERY})
"""All designs by name."""
