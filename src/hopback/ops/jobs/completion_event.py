"""The event that is published at the end of a re-drive, if the design of the queue has one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from hopback.headers import timestamp
from hopback.message import Message, Properties
from hopback.ops.contract.requests import JobKind

if TYPE_CHECKING:
    from hopback.designs.design import Design
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.jobs.job_record import JobRecord


def completion_event(
    design: Design | None, job: JobRecord, source: DeadLetterQueue
) -> Message | None:
    """Return the event for a re-drive, or None if the design does not have one.

    Its id is derived from the job and its run, so that duplicates can be detected.
    """
    if design is None or design.completion is None or job.kind is not JobKind.REDRIVE:
        return None
    event, counts = design.completion, job.counts
    operation = job.spec.submission.operation or job.id
    event_id = str(uuid5(NAMESPACE_URL, f"hopback:{job.id}:{job.run}"))
    envelope = {
        "messageId": event_id,
        "kind": "event",
        "type": event.type,
        "occurredAt": timestamp(job.updated),
        "correlationId": operation,
        "causationId": job.id,
        "producer": "hopback",
        "version": event.version,
        "payload": {
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
            "reason": job.spec.request.reason,
        },
    }
    return Message(
        event.exchange,
        event.routing_key,
        json.dumps(envelope).encode(),
        Properties(
            content_type="application/json",
            delivery_mode=2,
            message_id=event_id,
            correlation_id=operation,
            type=event.type,
            timestamp=int(job.updated),
        ),
    )
