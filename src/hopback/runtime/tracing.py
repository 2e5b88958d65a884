"""OpenTelemetry tracing. Requires the `tracing` extra.

Each run of a handler gets a span in the trace of its message. The trace context is stored in a
header (W3C `traceparent`), so all attempts of a message share a trace. A batch has a single span,
which links to the traces of its messages.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from hopback.extras import needs
from hopback.policy.outcome import Done
from hopback.policy.reading import Reading
from hopback.runtime.context import trace_source
from hopback.text import clip

with needs("tracing", "hopback.runtime.tracing"):
    from opentelemetry import context, propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opentelemetry.trace import Span, Tracer

    from hopback.fields import Headers
    from hopback.message import Delivery
    from hopback.runtime.answer import Answer, Run
    from hopback.topology.plan import Plan

_TEXT_BYTES = 1024  # maximum length of an attribute


def trace_run(run: Run, plan: Plan, tracer: Tracer | None = None) -> Run:
    """Wrap a run in a span."""
    own = tracer or trace.get_tracer("hopback")
    name, known = f"process {plan.queue}", _known_before(plan)

    async def run_traced(delivery: Delivery) -> Answer:
        # This is faster than start_as_current_span.
        carried = _trace_context(delivery)
        span = own.start_span(name, carried, kind=SpanKind.CONSUMER, attributes=known)
        recorded = span.is_recording()
        if recorded:
            # Attributes are only needed if the span is recorded.
            reading = Reading(delivery, plan)
            span.set_attributes(
                {
                    "messaging.rabbitmq.destination.routing_key": _clip(reading.origin[1]),
                    "messaging.message.id": _clip(reading.message_id),
                    "messaging.message.body.size": len(delivery.body),
                    "hopback.attempt": reading.attempt,
                    "hopback.max_attempts": plan.attempts,
                }
            )
        outer = context.attach(trace.set_span_in_context(span, carried))
        token = trace_source.set(current_trace)
        try:
            answer = await run(delivery)
            if recorded:
                _conclude(span, answer)
            return answer
        finally:
            trace_source.reset(token)
            context.detach(outer)
            span.end()

    return run_traced


@contextmanager
def trace_batch(
    deliveries: Sequence[Delivery], plan: Plan, tracer: Tracer | None = None
) -> Iterator[Callable[[Sequence[Answer]], None]]:
    """Create a span for a batch. Yields a function that records the results."""
    own = tracer or trace.get_tracer("hopback")
    carried = (trace.get_current_span(_trace_context(one)).get_span_context() for one in deliveries)
    with own.start_as_current_span(
        f"process {plan.queue}",
        kind=SpanKind.CONSUMER,
        links=[Link(found) for found in carried if found.is_valid],
        attributes={**_known_before(plan), "messaging.batch.message_count": len(deliveries)},
    ) as span:
        token = trace_source.set(current_trace)
        try:
            yield partial(_conclude_batch, span)
        finally:
            trace_source.reset(token)


def _conclude_batch(span: Span, answers: Sequence[Answer]) -> None:
    failed = sum(not isinstance(one.outcome, Done) for one in answers)
    span.set_attribute("hopback.failed", failed)
    if failed:
        span.set_status(Status(StatusCode.ERROR, f"{failed} of {len(answers)} messages failed"))


def _trace_context(delivery: Delivery) -> context.Context:
    headers = delivery.properties.headers
    carrier = {name: value for name, value in headers.items() if isinstance(value, str)}
    # The trace context consists of string headers.
    return propagate.extract(carrier) if carrier else context.get_current()


def current_trace() -> Headers:
    """Return the headers for the current span."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def _known_before(plan: Plan) -> dict[str, str | int]:
    """Return the attributes shared by all runs."""
    return {
        "messaging.system": "rabbitmq",
        "messaging.operation.type": "process",
        "messaging.destination.name": plan.queue,
    }


def _conclude(span: Span, answer: Answer) -> None:
    outcome = answer.outcome
    span.set_attribute("hopback.outcome", type(outcome).__name__.lower())
    if isinstance(outcome, Done):
        return
    if answer.failure is not None:
        span.set_attribute("error.type", answer.failure.type)
    span.set_status(Status(StatusCode.ERROR, _clip(getattr(outcome, "reason", ""))))


def _clip(text: str) -> str:
    """Clip text from a message. If it is not valid UTF-8, the exporter would drop a whole batch of
    spans.
    """
    return clip(text, _TEXT_BYTES)
