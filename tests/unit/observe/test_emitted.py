"""The table of events equals the emitted events, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from hopback import App, Context, Park, Snooze
from hopback.broker.embedded import Fault
from hopback.designs import DESIGNS
from hopback.errors import BrokerError
from hopback.observe.events import EVENTS, reporter
from hopback.testing import AppTest, in_virtual_time
from hopback.topology.expand import SHADOW
from hopback.topology.model import Queue


class _Cancelled:
    """Everything of that name was cancelled."""

    async def begin(self, message_id: str) -> bool:
        """Whether it is to be sent."""
        return message_id != "cancelled"


async def _never_return() -> None:
    await asyncio.Event().wait()


def _app() -> App:
    """An application whose payload selects an event."""
    app = App("shop", topology=DESIGNS["raffle"].build({}, hardened=False))

    @app.handler("orders", retry=["1s"], attempts=2, deadline=60)
    async def handle(payload: str, context: Context) -> Any:
        match payload:
            case "fail":
                raise ValueError("no")
            case "park":
                return Park("hopeless")
            case "snooze" if "hopback-snoozes" not in context.headers:
                return Snooze(1)
            case "slow":
                await asyncio.sleep(1_000)
            case "publish":
                try:
                    await context.publish("no.such.queue", {})
                except BrokerError:
                    return Park("nobody wants it")
            case "again":
                reporter.get()("inbox.duplicate", {"consumer": "orders", "key": "m-1"})
            case "wait":
                await asyncio.sleep(10)
        return None

    app.delays("1m", cancellations=_Cancelled())

    @app.every("1m", retry=["1s"])
    async def minutely() -> None: ...

    app.handler("stuck", retry=["1s"])(_never_return)

    @app.batch("users", retry=["1s"], size=2)
    async def insert(rows: list[dict[str, str]]) -> None: ...

    return app


def _other_app() -> App:
    app = App("added")

    @app.handler("added", retry=["1s"])
    async def handle() -> None: ...

    return app


@in_virtual_time
async def test_emitted_events_have_exactly_documented_fields() -> None:
    async with AppTest(_app()) as test:
        for payload in ("ok", "fail", "park", "snooze", "slow", "publish", "again"):
            await test.publish("orders", payload)
        await test.publish("users", {"name": "a"})
        for name in ("cancelled", "kept"):
            await test.publish("orders", "ok", delay="1s", message_id=name)
        await test.drain()
        await _delete(test, "hopback.delay.level-00")
        await test.publish("orders", "ok", delay="1s")
        await test.drain()
        test.faults.inject(Fault.LOSE_CONFIRM)
        await test.publish("orders", "fail")
        await test.drain()
        test.faults.inject(Fault.NACK)
        await test.publish("orders", "park")
        await test.drain()
        test.service.consumer("orders").pause("by command")
        await test.advance(1)
        test.service.consumer("orders").resume("by command")
        await test.advance(1)
        await _delete(test, "users")
        await test.advance(60)
        await _migrate(test, "users")
        await test.advance(60)
        await test.publish("minutely.schedule", {"since": 1, "last": 4_102_444_800_000})
        await test.publish("orders", "wait")
        for _ in range(4):
            await test.advance(5)
            test.broker.cut()
        await test.drain()
        await test.publish("stuck", {})
        await test.advance(3600)
        added = _other_app()
        await test.service.add(added)
        await test.service.remove(added)
    wrong = {
        one.name: sorted(set(one.fields) ^ set(EVENTS[one.name].fields))
        for one in test.events
        if set(one.fields) != set(EVENTS[one.name].fields)
    }
    assert wrong == {}
    assert {one.name for one in test.events} == set(EVENTS)


async def _delete(test: AppTest, queue: str) -> None:
    """Take a queue away from its consumer, as an operator might."""
    connection = await test.broker.connect("operator")
    channel = await connection.open_channel()
    await channel.delete_queue(queue)
    await connection.close()


async def _migrate(test: AppTest, queue: str) -> None:
    """Leave it as a migration does that was interrupted half-way."""
    connection = await test.broker.connect("operator")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue(queue + SHADOW))
    await channel.delete_queue(queue)
    await connection.close()


@in_virtual_time
async def test_no_event_contains_payload() -> None:
    async with AppTest(_app()) as test:
        await test.publish("orders", "secret-of-ours", headers={"token": "secret-header"})
        await test.publish("users", '{"secret": "secret-json"')
        await test.publish("users", ["a list that is too long", "secret-list"])
        await test.drain()
    told = repr([dict(one.fields) for one in test.events])
    assert "delivery.parked" in {one.name for one in test.events}
    assert "secret-" not in told
