"""Queues, jobs and plans as documents: the values of the contract as JSON, as the HTTP API has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.deadletters.codec import to_json

if TYPE_CHECKING:
    from hopback.deadletters.contract import (
        Cost,
        FailedMessage,
        Job,
        JobPlan,
        QueueDetail,
        QueueSummary,
    )

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


def _document(value: object) -> Document:
    found: Document = to_json(value)
    return found


def summary_document(summary: QueueSummary) -> Document:
    """A row of the list of queues."""
    return _document(summary)


def queue_document(detail: QueueDetail) -> Document:
    """Everything about one queue."""
    return _document(detail)


def cost_document(cost: Cost) -> Document:
    """What looking costs."""
    return _document(cost)


def job_document(job: Job) -> Document:
    """A job as it is now."""
    return _document(job)


def failure_document(failed: FailedMessage) -> Document:
    """A message that a job could not move, or left out."""
    return _document(failed)


def plan_document(plan: JobPlan) -> Document:
    """What a job would do."""
    return _document(plan)
