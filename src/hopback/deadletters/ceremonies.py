"""What a documented design asks for beside the re-drive itself: headers, and an event at the end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from hopback.deadletters.requests import JobKind
from hopback.headers import timestamp
from hopback.message import Message, Properties

if TYPE_CHECKING:
    from hopback.deadletters.discovery import DeadLetterQueue
    from hopback.deadletters.journal import JobRecord

__all__ = ["NO_CEREMONY", "Ceremony", "ceremony_of", "completion_event"]


@dataclass(frozen=True, slots=True)
class Ceremony:
    """`stamped`: the `x-redriven-…` headers are written. The event goes to `exchange`, if there is one."""

    stamped: bool = False
    exchange: str = ""
    routing_key: str = ""
    type: str = ""
    version: int = 1


NO_CEREMONY = Ceremony()
"""A design that asks for nothing."""

_BY_DESIGN = {
    "file-pipeline": Ceremony(
        stamped=True,
        exchange="domain.events",
        routing_key="operations.dlq.redrive.completed.v1",
        type="DlqRedriveCompleted.v1",
    ),
}


def ceremony_of(design: str) -> Ceremony:
    """What the design of that name asks for."""
    return _BY_DESIGN.get(design, NO_CEREMONY)


def completion_event(ceremony: Ceremony, job: JobRecord, source: DeadLetterQueue) -> Message | None:
    """The event that tells that messages were re-driven, or None if nobody asks for one.

    Its id follows from the job and its run: a second publish of the same can be recognised.
    """
    if not ceremony.exchange or job.kind is not JobKind.REDRIVE:
        return None
    operation = job.spec.operation or job.id
    ident = str(uuid5(NAMESPACE_URL, f"hopback:{job.id}:{job.run}"))
    envelope = {
        "messageId": ident,
        "kind": "event",
        "type": ceremony.type,
        "occurredAt": timestamp(job.updated),
        "correlationId": operation,
        "causationId": job.id,
        "producer": "hopback",
        "version": ceremony.version,
        "payload": _payload(job, source, operation),
    }
    return Message(
        ceremony.exchange,
        ceremony.routing_key,
        json.dumps(envelope).encode(),
        Properties(
            content_type="application/json",
            delivery_mode=2,
            message_id=ident,
            correlation_id=operation,
            type=ceremony.type,
            timestamp=int(job.updated),
        ),
    )


def _payload(job: JobRecord, source: DeadLetterQueue, operation: str) -> dict[str, object]:
    counts = job.counts
    return {
        "operationCorrelationId": operation,
        "jobId": job.id,
        "state": str(job.state),
        "queue": job.queue,
        "mainQueue": source.main_queue,
        "retryExchange": source.retry_exchange,
        "requested": counts.selected,
        "fetched": counts.selected - counts.remaining,
        "moved": counts.done,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "redrivenByUserId": job.spec.by.id,
        "redrivenByUserName": job.spec.by.name,
        "reason": job.spec.why,
    }
