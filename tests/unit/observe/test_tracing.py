"""OpenTelemetry: each attempt is a span of the trace that its message carries, in virtual time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from hopback import App, Context, Park, Service
from hopback.broker import EmbeddedBroker
from hopback.broker.embedded import run_virtual
from hopback.designs import DESIGNS
from hopback.message import Message, Properties
from hopback.observe.events import Bus
from hopback.runtime import Environment
from hopback.runtime.context import compose
from hopback.runtime.tracing import trace_batch, trace_run
from tests.harness.seeded import publish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.trace import ReadableSpan

    from hopback.fields import Headers
    from hopback.runtime.answer import Run
    from hopback.topology.plan import Plan

_TRACE = "0af7651916cd43dd8448eb211c80319c"
_CARRIED: Headers = {"traceparent": f"00-{_TRACE}-b7ad6b7169203331-01"}


class _Traces:
    """A tracer whose spans can be looked at."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self.wrap_run: Callable[[Run, Plan], Run] | None = partial(trace_run, tracer=self.tracer)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def play(self, app: App, queue: str, headers: Headers) -> None:
        """Run one message to its end."""
        properties = Properties(message_id="m-1", headers=headers)
        self.play_message(app, queue, Message("", queue, b"{}", properties))

    def play_message(self, app: App, queue: str, message: Message) -> None:
        run_virtual(self._play(app, queue, message))

    async def _play(self, app: App, queue: str, message: Message) -> None:
        over = asyncio.Event()

        def listen(name: str, fields: Mapping[str, Any]) -> None:
            if name in ("delivery.done", "delivery.parked") and fields["queue"] == queue:
                over.set()

        broker = EmbeddedBroker()
        service = Service(
            app, broker, environment=Environment(bus=Bus(listen), wrap_run=self.wrap_run)
        )
        running = asyncio.create_task(service.run())
        await service.ready.wait()
        await publish(broker, message)
        await over.wait()
        await asyncio.sleep(1)  # in virtual time, so that the messages it published also run
        service.stop()
        await running


def _trace_ids(spans: tuple[ReadableSpan, ...]) -> set[str]:
    contexts = [span.context for span in spans]
    return {trace.format_trace_id(one.trace_id) for one in contexts if one is not None}


@pytest.mark.parametrize("hardened", [False, True])
def test_every_attempt_is_a_span_of_one_trace(hardened: bool) -> None:
    app = App("pipeline", topology=DESIGNS["file-pipeline"].build({}, hardened=hardened))
    queue = app.topology.plans[0].queue

    @app.handler(queue)
    async def fail(context: Context) -> None:
        raise ValueError("secret")

    traces = _Traces()
    traces.play(app, queue, _CARRIED)
    spans = traces.spans
    assert _trace_ids(spans) == {_TRACE}
    assert [(span.attributes or {})["hopback.attempt"] for span in spans] == [1, 2, 3]
    assert {span.name for span in spans} == {f"process {queue}"}
    assert {span.kind for span in spans} == {SpanKind.CONSUMER}
    assert {span.status.status_code for span in spans} == {StatusCode.ERROR}


def test_span_has_message_and_outcome() -> None:
    app = App("shop")

    @app.handler("orders", retry=["1s"])
    async def handle(context: Context) -> None: ...

    traces = _Traces()
    traces.play(app, "orders", {})
    (span,) = traces.spans
    assert dict(span.attributes or {}) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.rabbitmq.destination.routing_key": "orders",
        "messaging.message.id": "m-1",
        "messaging.message.body.size": 2,
        "hopback.attempt": 1,
        "hopback.max_attempts": 2,
        "hopback.outcome": "done",
    }
    assert span.status.status_code is StatusCode.UNSET


def test_attributes_of_a_message_of_any_bytes_can_be_exported() -> None:
    """An exporter that encodes UTF-8 strictly would drop the whole batch of spans."""
    app = App("shop")

    @app.handler("orders", bind={"events": ["#"]})
    async def handle(context: Context) -> Park:
        return Park(f"bad id {context.message_id}")

    traces = _Traces()
    message = Message("events", "k\udcff", b"", Properties(message_id="\udcfe"))
    traces.play_message(app, "orders", message)
    (span,) = traces.spans
    found = dict(span.attributes or {})
    assert found["messaging.message.id"] == "\\udcfe"
    assert found["messaging.rabbitmq.destination.routing_key"] == "k\\udcff"
    assert span.status.description == "bad id \\udcfe"


@pytest.mark.parametrize("in_thread", [False, True])
def test_published_message_carries_current_span(in_thread: bool) -> None:
    traces = _Traces()
    app = App("shop")
    seen: list[Headers] = []
    inner: list[int] = []

    def handle_in_thread(context: Context) -> None:
        with traces.tracer.start_as_current_span("inner") as span:
            inner.append(span.get_span_context().span_id)
            context.publish_sync("next", {})

    async def handle(context: Context) -> None:
        with traces.tracer.start_as_current_span("inner") as span:
            inner.append(span.get_span_context().span_id)
            await context.publish("next", {})

    app.handler("orders", retry=["1s"])(handle_in_thread if in_thread else handle)

    @app.handler("next", retry=["1s"])
    async def receive(context: Context) -> None:
        seen.append(context.headers)

    traces.play(app, "orders", _CARRIED)
    (header,) = [one["traceparent"] for one in seen]
    assert header == f"00-{_TRACE}-{trace.format_span_id(inner[0])}-01"


def test_trace_is_forwarded_without_tracing() -> None:
    traces = _Traces()
    traces.wrap_run = None
    app = App("shop")
    seen: list[object] = []

    @app.handler("orders", retry=["1s"])
    async def handle(context: Context) -> None:
        await context.publish("next", {})

    @app.handler("next", retry=["1s"])
    async def receive(context: Context) -> None:
        seen.append(context.headers.get("traceparent"))

    traces.play(app, "orders", _CARRIED)
    assert traces.spans == ()
    assert seen == [_CARRIED["traceparent"]]


def test_invalid_trace_header_starts_new_trace() -> None:
    app = App("shop")

    @app.handler("orders", retry=["1s"])
    async def handle(context: Context) -> None: ...

    traces = _Traces()
    traces.play(app, "orders", {"traceparent": "00-zz\n", "tracestate": 5, "baggage": "=;=,"})
    assert len(traces.spans) == 1
    assert _trace_ids(traces.spans) != {_TRACE}


def test_batch_is_one_span_with_links() -> None:
    traces, app = _Traces(), App("raffle")
    published: list[Headers] = []

    @app.batch("users", size=3, retry=["1s"], attempts=1)
    async def insert(rows: list[int]) -> list[Park | None]:
        published.append(dict(compose("x", {}).properties.headers))
        return [Park("no") if row == 2 else None for row in rows]

    async def play() -> None:
        over = asyncio.Event()
        bus = Bus(lambda name, _fields: over.set() if name == "batch.handled" else None)
        around = partial(trace_batch, tracer=traces.tracer)
        environment = Environment(bus=bus, observe_batch=around)
        service = Service(app, EmbeddedBroker(), environment=environment)
        running = asyncio.create_task(service.run())
        await service.ready.wait()
        for row, headers in ((1, _CARRIED), (2, {}), (3, {"traceparent": "no trace"})):
            await service.app.publish("users", row, headers=headers)
        await over.wait()
        await asyncio.sleep(1)  # in virtual time, so that the messages it published also run
        service.stop()
        await running

    run_virtual(play())
    (span,) = traces.spans
    attributes = span.attributes or {}
    assert [trace.format_trace_id(one.context.trace_id) for one in span.links] == [_TRACE]
    assert attributes["messaging.batch.message_count"] == 3
    assert attributes["hopback.failed"] == 1
    assert span.status.status_code is StatusCode.ERROR
    assert span.context is not None
    own = trace.format_trace_id(span.context.trace_id)
    assert [str(one["traceparent"]).split("-")[1] for one in published] == [own]
