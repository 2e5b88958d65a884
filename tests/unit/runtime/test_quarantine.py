"""A message that kills the process is isolated and parked. Other messages are not affected."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Message
from hopback.broker import BrokerVersion, EmbeddedBroker
from hopback.broker.declare import declare
from hopback.broker.embedded import run_virtual
from hopback.broker.embedded.channel import EmbeddedChannel
from hopback.headers import read_history
from hopback.observe.events import Bus
from hopback.policy.breaker import BreakerPolicy
from hopback.runtime import Properties, assembly
from hopback.runtime.processes import deaths_in
from hopback.runtime.quarantine import Quarantine, SupervisorLink
from hopback.runtime.service import Service
from hopback.runtime.settling import Environment
from hopback.testing import AppTest, in_virtual_time
from tests.faults.simulated import Socket

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.topology.model import Topology

VERSIONS = [BrokerVersion(3, 10), BrokerVersion(4, 0), BrokerVersion(4, 3)]
PREFETCH = 40
RETURNS = 4
"""A message that was returned this often is suspected."""


def _with_limit(app: App, limit: int) -> Topology:
    """The application's queues, with another delivery limit."""
    whole = app.topology
    queues = tuple(
        replace(one, arguments={**one.arguments, "x-delivery-limit": limit})
        if whole.plan(one.name) is not None
        else one
        for one in whole.queues
    )
    return replace(whole, queues=queues)


@dataclass
class _Parent:
    """Restarts processes on one broker and counts the causes of their deaths, as `hopback run`
    does.
    """

    broker: EmbeddedBroker
    make_app: Callable[[Callable[[], None]], App]
    deaths: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    events: list[str] = field(default_factory=list)

    async def keep(self, *, supervised: bool = True) -> None:
        """One life after another, each a second after the last."""
        while True:
            socket, told = Socket(self.broker, lambda one: one), list[str | None]()
            died: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

            def die(
                socket: Socket = socket,
                told: list[str | None] = told,
                died: asyncio.Future[str | None] = died,
            ) -> None:
                """Drop everything that the process does from now on."""
                if not died.done():
                    died.set_result(told[-1] if told else None)
                    socket.dead = True
                    socket.cut()

            environment = Environment(
                bus=Bus(lambda name, _fields: self.events.append(name)),
                supervisor=SupervisorLink(told.append, dict(self.deaths)) if supervised else None,
            )
            service = Service(self.make_app(die), socket, environment=environment)
            running = asyncio.ensure_future(service.run())
            try:
                waiting: set[asyncio.Future[Any]] = {died, running}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()  # it ended unexpectedly: raise the reason
                blamed = await died
            finally:
                running.cancel()
                await asyncio.wait({running})
            self.crashes += 1
            self.deaths.update([blamed] if blamed is not None else [])
            await asyncio.sleep(1)


@dataclass
class _Shop:
    """A queue of innocents with one poison message among them."""

    broker: EmbeddedBroker
    innocents: int = 200
    limit: int = 10
    handled: Counter[int] = field(default_factory=Counter)
    at_once: int = 0
    other: bool = False
    """Whether a second queue is handled by the same processes."""
    mails: int = 1000
    """How many messages the second queue has at most."""
    returned: int = 0
    """How often the messages of the second queue were returned before the first process starts."""
    fuse_s: float = 0.0
    """How long the poison runs before it kills."""

    def app(self, die: Callable[[], None]) -> App:
        """The application of one life."""
        bare = App("shop")
        bare.queue("orders", retry=["1s"])
        bare.queue("mails", retry=["1s"])
        app = App("shop", topology=_with_limit(bare, self.limit))

        @app.handler("orders", concurrency=10, prefetch=PREFETCH)
        async def handle(number: int) -> None:
            if number < 0:
                await asyncio.sleep(self.fuse_s)
                die()
                await asyncio.Event().wait()
            await asyncio.sleep(0.01)
            self.handled[number] += 1

        if self.other:

            @app.handler("mails", concurrency=10, prefetch=PREFETCH)
            async def send(number: int) -> None:
                await asyncio.sleep(3)
                self.handled[number] += 1

        return app

    async def play(self, processes: int, *, supervised: bool = True) -> _Parent:
        """Publish, run until all messages were handled or parked, and report the deaths."""
        connection = await self.broker.connect("producer")
        await declare(connection, self.app(lambda: None).topology)
        channel = await connection.open_channel()
        numbers = [*range(1, 20), -1, *range(20, self.innocents + 1)]
        for number in numbers:
            properties = Properties(message_id=str(number), delivery_mode=2)
            await channel.publish(Message("", "orders", str(number).encode(), properties))
            if self.other and 0 < number <= self.mails:
                body = str(1000 + number).encode()
                await channel.publish(Message("", "mails", body, Properties(delivery_mode=2)))
        for _ in range(self.returned):
            somebody = await self.broker.connect("somebody")
            holding = await somebody.open_channel()
            while await holding.get("mails") is not None:
                pass
            await somebody.close()
        parent = _Parent(self.broker, self.app)
        lives = [
            asyncio.ensure_future(parent.keep(supervised=supervised)) for _ in range(processes)
        ]
        for _ in range(200):
            busy = any(self.broker.snapshot().queue(name).messages for name in ("orders", "mails"))
            if not busy or any(life.done() for life in lives):
                break
            await asyncio.sleep(5)
        for life in lives:
            life.cancel()
        for ended in await asyncio.gather(*lives, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
        await connection.close()
        return parent

    @property
    def parked(self) -> list[bytes]:
        """The messages in the dead-letter queues."""
        found = self.broker.snapshot()
        return [
            one.body for name in ("orders", "mails") for one in found.queue(f"{name}.dlq").messages
        ]


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@in_virtual_time
async def test_poison_message_is_parked_with_record_and_alone(
    version: BrokerVersion, processes: int
) -> None:
    """The prefetch is 40 and the limit 10. No other message is parked."""
    shop = _Shop(EmbeddedBroker(version=version))
    parent = await shop.play(processes)
    assert shop.parked == [b"-1"]
    assert set(shop.handled) == set(range(1, 201))
    (poison,) = shop.broker.snapshot().queue("orders.dlq").messages
    failure = read_history(poison.properties.headers, "orders").failure
    assert failure is not None
    expected = r"the process died \d+ times while this message alone was being handled"
    assert re.fullmatch(expected, failure.message)
    # Four times in a full window, three times alone, and once for each sibling that did not know of it.
    assert 7 <= parent.crashes <= 7 + 2 * (processes - 1)
    assert list(parent.deaths.values()) >= [3]


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@in_virtual_time
async def test_poison_message_without_parent_is_parked_by_delivery_limit(
    version: BrokerVersion,
) -> None:
    """It runs alone, so no other message comes near the limit."""
    shop = _Shop(EmbeddedBroker(version=version))
    parent = await shop.play(1, supervised=False)
    assert shop.parked == [b"-1"]
    assert set(shop.handled) == set(range(1, 201))
    assert parent.crashes == shop.limit + 1


@in_virtual_time
async def test_messages_of_another_queue_are_never_suspected() -> None:
    """They are slow and unacked at every crash. They wait while the suspect runs."""
    shop = _Shop(EmbeddedBroker(), innocents=30, other=True)
    parent = await shop.play(1)
    assert shop.parked == [b"-1"]
    assert len(parent.deaths) == 1
    assert set(shop.handled) == {*range(1, 31), *range(1001, 1031)}


@pytest.mark.parametrize("mails", [1, 2, 30])
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@in_virtual_time
async def test_messages_of_another_queue_stay_below_delivery_limit(
    version: BrokerVersion, mails: int
) -> None:
    """Without a parent, the process dies eleven times."""
    broker = EmbeddedBroker(version=version)
    shop = _Shop(broker, innocents=30, other=True, mails=mails, fuse_s=0.1)
    parent = await shop.play(1, supervised=False)
    assert shop.parked == [b"-1"]
    assert parent.crashes == shop.limit + 1
    assert set(shop.handled) == {*range(1, 31), *range(1001, 1001 + mails)}


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@in_virtual_time
async def test_message_that_was_returned_more_often_than_the_poison_is_not_parked(
    version: BrokerVersion,
) -> None:
    """It waits during four crashes. The next two would park it, so its turn comes first."""
    shop = _Shop(
        EmbeddedBroker(version=version), innocents=30, other=True, mails=1, returned=5, fuse_s=0.1
    )
    await shop.play(1, supervised=False)
    assert shop.parked == [b"-1"]
    assert set(shop.handled) == {*range(1, 31), 1001}


@in_virtual_time
async def test_without_quarantine_neighbours_are_parked_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It shows that the test above can fail."""
    monkeypatch.setattr(Quarantine, "suspects", lambda _quarantine, _delivery: False)
    shop = _Shop(EmbeddedBroker())
    await shop.play(1, supervised=False)
    assert len(shop.parked) > 10


@pytest.mark.parametrize("returns", [1, 2, 3])
@in_virtual_time
async def test_messages_redelivered_up_to_three_times_are_not_suspected(returns: int) -> None:
    """The causes are deploys, lost connections, killed processes and broker restarts."""
    at_once, most = 0, 0
    app = App("shop")

    @app.handler("orders", retry=["1s"], concurrency=10, prefetch=PREFETCH)
    async def handle() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(10)
        at_once -= 1

    async with AppTest(app) as test:
        for number in range(60):
            await test.publish("orders", number)
        for _ in range(returns):
            await test.advance(5)
            test.broker.cut()
        await test.advance(20)
        most = at_once
        await test.advance(1)
        assert most == 10
        await test.drain()
        assert not test.find_events("quarantine.begun")


@in_virtual_time
async def test_suspected_messages_run_alone_then_window_reopens() -> None:
    """Four connections were lost under a slow window. Each message runs once more, one by one."""
    runs: list[tuple[int, int]] = []
    running = 0
    app = App("shop")

    @app.handler("orders", retry=["1s"], concurrency=10, prefetch=10)
    async def handle(number: int) -> None:
        nonlocal running
        running += 1
        runs.append((number, running))
        await asyncio.sleep(10)
        running -= 1

    async with AppTest(app) as test:
        for number in range(30):
            await test.publish("orders", number)
        for _ in range(RETURNS):
            await test.advance(4)
            test.broker.cut()
        await test.advance(15)
        runs.clear()
        await test.drain()
        suspected = len(test.find_events("quarantine.begun"))
    assert suspected >= 9
    alone = [number for number, beside in runs if beside == 1]
    assert len(alone) >= suspected - 2
    assert max(beside for _, beside in runs) == 10


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@in_virtual_time
async def test_suspect_delivered_with_new_subscription_is_not_lost(
    version: BrokerVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten wait behind a window of two.

    The third arrives while the window is reopened. On a socket a delivery may be read together with
    the answer to the subscription, before the waiting task continues.
    """
    plain = EmbeddedChannel.consume

    async def consume(channel: EmbeddedChannel, *positional: Any, **named: Any) -> str:
        tag = await plain(channel, *positional, **named)
        await asyncio.sleep(0.01)
        return tag

    monkeypatch.setattr(EmbeddedChannel, "consume", consume)
    handled: list[int] = []
    go_on = asyncio.Event()
    app = App("shop")

    @app.handler("orders", retry=["1s"], prefetch=2)
    async def handle(number: int) -> None:
        await go_on.wait()
        handled.append(number)

    async with AppTest(app, broker=EmbeddedBroker(version=version)) as test:
        for number in range(13):
            await test.publish("orders", number)
        await test.advance(1)  # the first is in hand, and the window that it opened is full
        for _ in range(RETURNS):
            somebody = await test.broker.connect("somebody")
            channel = await somebody.open_channel()
            while await channel.get("orders") is not None:
                pass
            if len(handled) < RETURNS - 1:
                await somebody.close()
                handled.append(-1)
        go_on.set()
        await test.advance(1)
        assert handled == [-1] * (RETURNS - 1) + [0, 1, 2]
        await somebody.close()
        await test.advance(60)
        suspected = len(test.find_events("quarantine.begun"))
        assert not test.find_events("consumer.lost")  # and no watch that detects the stall
    assert sorted(handled) == [-1] * (RETURNS - 1) + list(range(13))
    assert suspected == 10


@in_virtual_time
async def test_suspect_delivered_during_shutdown_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled: list[int] = []
    go_on = asyncio.Event()
    app = App("shop")

    @app.handler("orders", retry=["1s"], prefetch=2)
    async def handle(number: int) -> None:
        await go_on.wait()
        handled.append(number)

    async with AppTest(app) as test:
        for number in range(4):
            await test.publish("orders", number)
        await test.advance(1)  # the first is in hand, and the window that it opened is full
        somebody = await test.broker.connect("somebody")
        for _ in range(RETURNS):
            await somebody.close()
            somebody = await test.broker.connect("somebody")
            await (await somebody.open_channel()).get("orders")
        go_on.set()
        await test.advance(1)
        plain = EmbeddedChannel.cancel

        async def cancel(channel: EmbeddedChannel, tag: str) -> None:
            await somebody.close()
            await asyncio.sleep(1)
            await plain(channel, tag)

        monkeypatch.setattr(EmbeddedChannel, "cancel", cancel)
    assert handled == [0, 1, 2]
    assert not test.find_events("quarantine.begun")
    (left,) = test.broker.snapshot().queue("orders").messages
    assert left.body == b"3"


@in_virtual_time
async def test_error_during_quarantine_restarts_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, handled = Quarantine.run, list[int]()
    app = App("shop")

    async def fail_once(*positional: Any, **named: Any) -> None:
        monkeypatch.setattr(Quarantine, "run", plain)
        raise ValueError("something unforeseen")

    @app.handler("orders", retry=["1s"], concurrency=1, prefetch=1)
    async def handle(number: int) -> None:
        await asyncio.sleep(5)
        handled.append(number)

    monkeypatch.setattr(Quarantine, "run", fail_once)
    async with AppTest(app) as test:
        await test.publish("orders", 1)
        for _ in range(RETURNS):
            await test.advance(3)
            test.broker.cut()
        await test.advance(30)
        assert [one.fields["reason"] for one in test.find_events("consumer.lost")][-1:] == [
            "an error beside its handler"
        ]
        await test.drain()
        assert not test.broker.snapshot().queue("orders").messages
    assert set(handled) == {1}


@in_virtual_time
async def test_batch_with_suspect_has_size_one() -> None:
    sizes: list[list[int]] = []
    app = App("shop")

    @app.batch("users", retry=["1s"], size=5, wait="1s", batchers=2)
    async def insert(rows: list[int]) -> None:
        sizes.append(list(rows))
        await asyncio.sleep(10)

    async with AppTest(app) as test:
        for number in range(5):
            await test.publish("users", number)
        for _ in range(RETURNS):
            await test.advance(5)
            test.broker.cut()
        await test.advance(3)
        sizes.clear()
        await test.drain()
    assert sizes
    assert all(len(rows) == 1 for rows in sizes)


@in_virtual_time
async def test_suspect_of_a_batch_paused_by_its_breaker_does_not_block_the_loop() -> None:
    app, calls = App("shop"), list[list[int]]()
    breaker = BreakerPolicy(failures=2, cool_down=60)

    @app.batch("users", retry=["1h"], size=5, wait="1s", breaker=breaker)
    async def insert(rows: list[int]) -> None:
        calls.append(rows)
        await asyncio.sleep(10)
        raise OSError("no database")

    async with AppTest(app) as test:
        for number in range(5):
            await test.publish("users", number)
        for _ in range(RETURNS):
            await test.advance(5)
            test.broker.cut()
        calls.clear()
        await test.advance(300)
    assert [len(rows) for rows in calls] == [1, 1]


@pytest.mark.parametrize(
    "options", [{"rate": "1/m"}, {"breaker": BreakerPolicy(failures=2, cool_down=60)}]
)
@in_virtual_time
async def test_suspect_that_may_not_start_does_not_stop_other_queues(options: Any) -> None:
    """The breaker is open, or the rate does not allow another message yet."""
    app, waits = App("shop"), list[float]()
    time = asyncio.get_running_loop().time

    @app.handler("payments", retry=["1h"], **options)
    async def pay() -> None:
        await asyncio.sleep(0.1)
        raise OSError("no answer")

    @app.handler("mails", retry=["1s"])
    async def mail(published: float) -> None:
        waits.append(time() - published)

    async with AppTest(app) as test:
        for number in range(10):
            await test.publish("payments", number)
        for _ in range(RETURNS):
            await test.advance(0.05)
            test.broker.cut()
            await test.advance(3)
        waits.clear()
        for _ in range(60):
            await test.publish("mails", time())
            await test.advance(5)
        assert test.find_events("quarantine.begun")
    assert len(waits) == 60
    assert max(waits) < 1


def test_invalid_deaths_in_environment_are_ignored() -> None:
    assert deaths_in({}) == {}
    assert deaths_in({"HOPBACK_DEATHS": "nonsense"}) == {}
    assert deaths_in({"HOPBACK_DEATHS": "[1]"}) == {}
    assert deaths_in({"HOPBACK_DEATHS": '{"a": 2, "b": "x"}'}) == {"a": 2}


async def _restart_in_turn(messages: int) -> float:
    """Seconds that three processes take for these messages while each of them is replaced."""
    loop, done, broker = asyncio.get_running_loop(), 0, EmbeddedBroker()

    def app() -> App:
        made = App("shop")

        @made.handler("orders", retry=["1s"], concurrency=10, prefetch=PREFETCH)
        async def handle() -> None:
            nonlocal done
            await asyncio.sleep(0.05)
            done += 1

        return made

    def started() -> tuple[Service, asyncio.Task[Any]]:
        service = Service(app(), broker, environment=Environment(bus=Bus()))
        return service, asyncio.ensure_future(service.run())

    connection = await broker.connect("producer")
    await declare(connection, app().topology)
    channel = await connection.open_channel()
    for number in range(messages):
        properties = Properties(message_id=str(number), delivery_mode=2)
        await channel.publish(Message("", "orders", b"1", properties))
    began, running = loop.time(), [started() for _ in range(3)]
    for at in (1, 2, 3):
        while done < messages * at / 5:  # noqa: ASYNC110 - virtual time passes by itself
            await asyncio.sleep(0.05)
        service, ending = running.pop(0)
        service.stop()
        await ending
        running.append(started())
    while done < messages:  # noqa: ASYNC110 - virtual time passes by itself
        await asyncio.sleep(0.05)
    took = loop.time() - began
    for service, ending in running:
        service.stop()
        await ending
    await connection.close()
    return took


def test_rolling_restart_takes_no_longer_than_without_quarantine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    careful = run_virtual(_restart_in_turn(2000))
    monkeypatch.setattr(assembly, "can_suspect", lambda _plan: False)
    assert careful <= run_virtual(_restart_in_turn(2000)) * 1.02


async def _done_after_kills(kills: int) -> tuple[int, int]:
    """Messages handled from 10 s to 40 s after the start of a process, if others were killed just
    before. There are two queues: handlers of 3 s with 20 slots and prefetch 40, and handlers of 50
    ms.
    """
    done = Counter[str]()
    broker = EmbeddedBroker()

    def app() -> App:
        made = App("shop")

        @made.handler("orders", retry=["1s"], concurrency=20, prefetch=PREFETCH)
        async def handle() -> None:
            await asyncio.sleep(3)
            done["orders"] += 1

        @made.handler("mails", retry=["1s"], concurrency=1, prefetch=PREFETCH)
        async def send() -> None:
            await asyncio.sleep(0.05)
            done["mails"] += 1

        return made

    connection = await broker.connect("producer")
    await declare(connection, app().topology)
    channel = await connection.open_channel()
    for number in range(1500):
        properties = Properties(message_id=str(number), delivery_mode=2)
        for queue in ("orders", "mails"):
            await channel.publish(Message("", queue, b"1", properties))
    for life in range(kills + 1):
        socket = Socket(broker, lambda one: one)
        running = asyncio.ensure_future(Service(app(), socket).run())
        await asyncio.sleep(2)
        if life < kills:
            socket.dead = True
            socket.cut()
            running.cancel()
            await asyncio.wait({running})
    await asyncio.sleep(8)
    done.clear()
    await asyncio.sleep(30)
    found = done["orders"], done["mails"]
    running.cancel()
    await asyncio.wait({running})
    await connection.close()
    return found


@pytest.mark.parametrize("kills", [2, 3])
def test_processes_killed_in_a_row_cost_no_throughput(kills: int) -> None:
    """Slow handlers are back at their rate within 10 s, and the other queue does not stall."""
    orders, mails = run_virtual(_done_after_kills(kills))
    normal_orders, normal_mails = run_virtual(_done_after_kills(0))
    assert orders >= 0.8 * normal_orders > 0
    assert mails >= 0.8 * normal_mails > 0
