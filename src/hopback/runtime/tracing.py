"""OpenTelemetry: a span for each run of a handler, in the trace that its message carries.

A batch is handled for many messages at once: one span, linked to the trace of each of them.

The trace context travels in the headers of the message (W3C `traceparent`), which every hop leaves
untouched: each attempt, also after half an hour in a retry queue, is a span of the same trace. Needs
the extra `tracing`.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from hopback.extras import needs
from hopback.headers import identity
from hopback.policy.outcome import Done
from hopback.policy.reading import attempt_of, original_routing_key
from hopback.runtime.context import trace_source

with needs("tracing", "hopback.runtime.tracing"):
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.trace import Span, Tracer

    from hopback.fields import Headers
    from hopback.message import Delivery
    from hopback.runtime.answer import Answer, Run
    from hopback.topology.plan import Plan

__all__ = ["current_trace", "traced", "traced_batch"]


def traced(run: Run, plan: Plan, tracer: Tracer | None = None) -> Run:
    """The same run inside a span of the trace that the delivery carries."""
    own = tracer or trace.get_tracer("hopback")

    async def run_traced(delivery: Delivery) -> Answer:
        with own.start_as_current_span(
            f"process {plan.queue}",
            propagate.extract(_carrier(delivery)),
            kind=SpanKind.CONSUMER,
            attributes=_attributes(delivery, plan),
        ) as span:
            token = trace_source.set(current_trace)
            try:
                answer = await run(delivery)
            finally:
                trace_source.reset(token)
            _conclude(span, answer)
            return answer

    return run_traced


@contextmanager
def traced_batch(
    deliveries: Sequence[Delivery], plan: Plan, tracer: Tracer | None = None
) -> Iterator[Callable[[Sequence[Answer]], None]]:
    """A span for the handling of a batch; it is told the answers at the end."""
    own = tracer or trace.get_tracer("hopback")
    with own.start_as_current_span(
        f"process {plan.queue}",
        kind=SpanKind.CONSUMER,
        links=list(_links(deliveries)),
        attributes={
            "messaging.system": "rabbitmq",
            "messaging.operation.type": "process",
            "messaging.destination.name": plan.queue,
            "messaging.batch.message_count": len(deliveries),
        },
    ) as span:
        token = trace_source.set(current_trace)
        try:
            yield partial(_conclude_batch, span)
        finally:
            trace_source.reset(token)


def _links(deliveries: Sequence[Delivery]) -> Iterator[Link]:
    """The span that each message came with, where it came with one."""
    for delivery in deliveries:
        found = trace.get_current_span(propagate.extract(_carrier(delivery))).get_span_context()
        if found.is_valid:
            yield Link(found)


def _conclude_batch(span: Span, answers: Sequence[Answer]) -> None:
    failed = sum(not isinstance(one.outcome, Done) for one in answers)
    span.set_attribute("hopback.failed", failed)
    if failed:
        span.set_status(Status(StatusCode.ERROR, f"{failed} of {len(answers)} messages failed"))


def _carrier(delivery: Delivery) -> dict[str, str]:
    """The headers that a propagator can read; an event bus in another language may add others."""
    headers = delivery.properties.headers
    return {name: value for name, value in headers.items() if isinstance(value, str)}


def current_trace() -> Headers:
    """The headers that carry the current span on to a message published now."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def _attributes(delivery: Delivery, plan: Plan) -> dict[str, str | int]:
    """OpenTelemetry's names for messaging, and the attempt."""
    return {
        "messaging.system": "rabbitmq",
        "messaging.operation.type": "process",
        "messaging.destination.name": plan.queue,
        "messaging.rabbitmq.destination.routing_key": original_routing_key(delivery, plan),
        "messaging.message.id": delivery.properties.message_id or identity(delivery),
        "messaging.message.body.size": len(delivery.body),
        "hopback.attempt": attempt_of(delivery, plan),
        "hopback.max_attempts": plan.attempts,
    }


def _conclude(span: Span, answer: Answer) -> None:
    outcome = answer.outcome
    span.set_attribute("hopback.outcome", type(outcome).__name__.lower())
    if isinstance(outcome, Done):
        return
    if answer.failure is not None:
        span.set_attribute("error.type", answer.failure.type)
    span.set_status(Status(StatusCode.ERROR, getattr(outcome, "reason", "")[:200]))
