"""Queues, jobs and plans as documents: the same names and values as the HTTP API has them.

The commands work on documents only. Asked of a broker they are made here, asked of a server they are
what it answers; so a script reads the same from both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.cli.letter_documents import group_document, moment

if TYPE_CHECKING:
    from hopback.deadletters.cost import Cost
    from hopback.deadletters.jobs import FailedMessage, Job
    from hopback.deadletters.overview import Depth, QueueDetail, QueueSummary, TargetChoice
    from hopback.deadletters.plans import JobPlan

__all__ = [
    "Document",
    "cost_document",
    "failure_document",
    "job_document",
    "plan_document",
    "queue_document",
    "summary_document",
]

Document: TypeAlias = dict[str, Any]
"""What JSON calls an object."""


def summary_document(summary: QueueSummary, now: float) -> Document:
    """A row of the list of queues."""
    depth = summary.depth
    return {
        "queue": summary.queue,
        "mainQueue": summary.main_queue,
        "origins": list(summary.origins),
        "retryExchange": summary.retry_exchange,
        "label": summary.label,
        "knownBy": summary.known_by,
        "exists": summary.exists,
        "messages": depth.total,
        "messagesReady": depth.ready,
        "messagesUnacknowledged": depth.unacked,
        "consumers": depth.consumers,
        "state": summary.state,
        "idleSince": summary.idle_since,
        "depth": _depth(depth, now),
        "heldBack": _held_back(summary),
        "activeJob": None if summary.active_job is None else job_document(summary.active_job),
    }


def queue_document(detail: QueueDetail, now: float) -> Document:
    """Everything about one queue."""
    summary = detail.summary
    return {
        "queue": summary.queue,
        "mainQueue": summary.main_queue,
        "origins": list(summary.origins),
        "retryExchange": summary.retry_exchange,
        "label": summary.label,
        "knownBy": summary.known_by,
        "exists": summary.exists,
        "state": summary.state,
        "idleSince": summary.idle_since,
        "depth": _depth(summary.depth, now),
        "heldBack": _held_back(summary),
        "type": None if detail.type is None else detail.type.value,
        "deliveryLimit": detail.limit,
        "limitLifted": detail.limit_lifted,
        "canLift": detail.can_lift,
        "cost": cost_document(detail.cost),
        "targets": [_target(choice) for choice in detail.targets],
        "activeJob": None if summary.active_job is None else job_document(summary.active_job),
        "brokerVersion": str(detail.version),
    }


def _held_back(summary: QueueSummary) -> list[Document]:
    return [{"queue": queue, "messages": count} for queue, count in summary.held_back]


def _depth(depth: Depth, now: float) -> Document:
    return {
        "messages": depth.total,
        "messagesReady": depth.ready,
        "messagesUnacknowledged": depth.unacked,
        "messagesHeldBack": depth.held_back,
        "consumers": depth.consumers,
        "source": depth.source,
        "readAt": moment(depth.read_at),
        "ageSeconds": round(depth.age(now), 3),
    }


def cost_document(cost: Cost) -> Document:
    """What looking costs."""
    return {
        "price": cost.price.value,
        "text": cost.text,
        "deliveryLimit": cost.limit,
        "remedy": cost.remedy,
    }


def _target(choice: TargetChoice) -> Document:
    return {
        "kind": choice.target.kind.value,
        "text": choice.text,
        "exchange": choice.exchange,
        "routingKey": choice.routing_key,
        "warning": choice.warning,
        "flaw": choice.flaw,
        "isDefault": choice.is_default,
    }


def job_document(job: Job) -> Document:
    """A job as it is now."""
    counts, spec = job.counts, job.spec
    return {
        "id": job.id,
        "url": f"/admin/dlq/jobs/{job.id}",
        "kind": job.kind.value,
        "queue": job.queue,
        "state": job.state.value,
        "stateReason": job.reason,
        "reason": spec.why,
        "by": spec.by.name,
        "byId": spec.by.id,
        "target": str(spec.target),
        "filter": spec.selection.filter,
        "rate": job.rate,
        "ramp": list(spec.pace.ramp),
        "counts": {
            "selected": counts.selected,
            "done": counts.done,
            "skipped": counts.skipped,
            "failed": counts.failed,
            "returned": counts.returned,
            "remaining": counts.remaining,
            "arrivedMeanwhile": counts.arrived_meanwhile,
            "cameBack": counts.came_back,
        },
        "canResume": job.can_resume,
        "exportTo": spec.export_to,
        "createdAt": moment(job.created),
        "updatedAt": moment(job.updated),
    }


def failure_document(failed: FailedMessage) -> Document:
    """A message that a job could not move, or left out."""
    return {
        "id": failed.letter_id,
        "messageId": failed.message_id,
        "digest": failed.digest,
        "reason": failed.reason,
        "at": moment(failed.at),
    }


def plan_document(plan: JobPlan) -> Document:
    """What a job would do."""
    return {
        "kind": plan.kind.value,
        "queue": plan.queue,
        "target": plan.target,
        "selected": plan.selected,
        "seen": plan.seen,
        "matching": plan.matching,
        "reasons": [group_document(group) for group in plan.reasons],
        "errors": [group_document(group) for group in plan.errors],
        "ways": [
            {
                "exchange": way.exchange,
                "routingKey": way.routing_key,
                "count": way.count,
                "flaw": way.flaw,
            }
            for way in plan.ways
        ],
        "leftOut": [{"reason": left.reason, "count": left.count} for left in plan.left_out],
        "cost": cost_document(plan.cost),
        "order": plan.order,
        "warnings": list(plan.warnings),
        "flaws": list(plan.flaws),
        "mayStart": plan.may_start,
        "asOf": moment(plan.as_of),
        "watchSeconds": plan.watch_s,
        "exportTo": plan.export_to,
    }
