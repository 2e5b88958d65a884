"""Questions with answers: direct reply-to, time-outs, lost connections, answers that come too late."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Context, NoReply, Park, RequestClient, Router
from hopback.broker.embedded import EmbeddedBroker
from hopback.broker.port import REPLY_TO
from hopback.errors import (
    InvalidDeclaration,
    InvalidMessage,
    LoginRefused,
    PreconditionFailed,
    PublishInterrupted,
    PublishRefused,
    Returned,
)
from hopback.message import Message, Properties
from hopback.runtime import Codecs, MsgpackCodec
from hopback.runtime.payload import Undecodable
from hopback.testing import AppTest, Tally, in_virtual_time
from hopback.topology.model import Queue
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Price:
    """The price of an article."""

    sku: str
    cents: int


def _app(reply_queues: Sequence[str] = ()) -> App:
    app = App("prices", reply_queues=reply_queues)

    @app.handler("prices", retry=None, replies=True)
    async def price(question: dict[str, Any], context: Context) -> Price | Park | None:
        match question["sku"]:
            case "hopeless":
                return Park("no such article")
            case "slow":
                await asyncio.sleep(30)
            case "by hand":
                await context.reply(Price("by hand", 1))
                return Price("never seen", 2)
            case "nothing":
                return None
        return Price(question["sku"], 100)

    @app.handler("shop", retry=["1s"])
    async def shop(sku: str) -> None:
        found = await app.request("prices", {"sku": sku}, returns=Price)
        assert found == Price(sku, 100)

    return app


@in_virtual_time
async def test_handler_return_value_is_the_reply() -> None:
    """It is decoded into the requested type.

    A reply that the handler publishes takes precedence.
    """
    async with AppTest(_app()) as test:
        assert await test.request("prices", {"sku": "a"}, returns=Price) == Price("a", 100)
        assert await test.request("prices", {"sku": "b"}) == {"sku": "b", "cents": 100}
        assert (await test.request("prices", {"sku": "by hand"}))["cents"] == 1
        assert await test.request("prices", {"sku": "nothing"}) is None
        with pytest.raises(Undecodable):
            await test.request("prices", {"sku": "a"}, returns=int)
        assert await test.drain() == Tally(done=5)
        assert not test.find_events("publish.failed")


@in_virtual_time
async def test_concurrent_requests_get_their_own_replies() -> None:
    """They share one channel, and the replies arrive in any order."""
    async with AppTest(_app()) as test, RequestClient(test.broker) as client:
        asked = [client.request("prices", {"sku": str(n)}, returns=Price) for n in range(200)]
        found = await asyncio.gather(*asked)
        assert [one.sku for one in found] == [str(n) for n in range(200)]
        assert client.late == 0


@in_virtual_time
async def test_request_without_reply_raises_no_reply_after_timeout() -> None:
    """A later reply is ignored and is not a failure."""
    async with AppTest(_app()) as test, RequestClient(test.broker) as client:
        await client.request("prices", {"sku": "on a separate channel"})
        began = asyncio.get_running_loop().time()
        with pytest.raises(NoReply, match=r"no reply within 5 s to a request for queue 'prices'"):
            await client.request("prices", {"sku": "slow"}, timeout="5s")
        assert 5 <= asyncio.get_running_loop().time() - began < 5.1
        with pytest.raises(NoReply):
            await client.request("prices", {"sku": "hopeless"}, timeout=1)
        await test.advance(60)
        assert client.late == 1
        assert (await client.request("prices", {"sku": "c"}, returns=Price)).sku == "c"
        test.assert_parked("prices", times=1, reason="no such article")
        assert not test.find_events("publish.failed")


@in_virtual_time
async def test_unroutable_request_is_returned() -> None:
    async with RequestClient(EmbeddedBroker()) as client:
        with pytest.raises(Returned, match="nowhere"):
            await client.request("nowhere", {})


@in_virtual_time
async def test_lost_connection_ends_request_and_next_one_works() -> None:
    async with AppTest(_app()) as test, RequestClient(test.broker) as client:
        began = asyncio.get_running_loop().time()
        asking = asyncio.create_task(client.request("prices", {"sku": "slow"}, timeout="1h"))
        await asyncio.sleep(1)
        test.broker.cut()
        with pytest.raises(NoReply, match="no reply can come any more"):
            await asking
        assert asyncio.get_running_loop().time() - began < 2
        answer = await client.request("prices", {"sku": "d"}, timeout="1m", returns=Price)
        assert answer == Price("d", 100)
        await test.drain()


@in_virtual_time
async def test_request_waits_for_next_server() -> None:
    """It is a message like any other."""
    broker = EmbeddedBroker()
    async with AppTest(_app(), broker=broker):
        pass
    async with RequestClient(broker) as client:
        asking = asyncio.create_task(client.request("prices", {"sku": "e"}, timeout="1m"))
        await asyncio.sleep(10)
        async with AppTest(_app(), broker=broker):
            assert (await asking)["sku"] == "e"


@in_virtual_time
async def test_handler_may_send_requests() -> None:
    """The connection opens with the first request and closes with the application."""
    async with AppTest(_app()) as test:
        for sku in "abc":
            await test.publish("shop", sku)
        assert await test.drain(reraise=True) == Tally(done=6)
        assert any(one.name == "prices requests" for one in test.broker.connections)
    assert test.broker.connections == ()


@in_virtual_time
async def test_reply_is_sent_to_declared_reply_queue() -> None:
    """It has the correlation id of the request. A message without `reply_to` gets no reply."""
    app = _app(reply_queues=["answers", "go*"])

    @app.handler("echo", retry=["1s"])
    async def echo(context: Context) -> None:
        assert not context.wants_reply
        with pytest.raises(ValueError, match="asks for a reply"):
            await context.reply({})

    @app.handler("square", retry=None)
    def square(number: int, context: Context) -> None:
        context.reply_sync(number * number)

    async with AppTest(app) as test:
        channel = await (await test.broker.connect()).open_channel()
        await channel.declare_queue(Queue("answers"))
        for queue, payload in (("prices", {"sku": "f"}), ("square", 7)):
            await test.publish(queue, payload, reply_to="answers", correlation_id=f"asked {queue}")
        await test.publish("prices", {"sku": "g"})
        await test.publish("prices", {"sku": "h"}, reply_to="gone")
        await test.publish("echo", {})
        await test.drain(reraise=True)
        found = [await channel.get("answers") for _ in range(2)]
        told = {(one.properties.correlation_id, one.body) for one in found if one is not None}
        assert told == {("asked prices", b'{"sku":"f","cents":100}'), ("asked square", b"49")}
        assert await channel.get("answers") is None
        assert await test.request("square", 9) == 81


@pytest.mark.parametrize("address", ["vault", "amq.gen-abc", "amq.rabbitmq.reply-to.a.b"])
@in_virtual_time
async def test_reply_to_undeclared_queue_parks_request(address: str) -> None:
    """A producer must not make a handler publish with the permissions of its process."""
    app = App("prices", reply_queues=["answers"])
    runs = []

    @app.handler("prices", retry=["1s"], replies=True)
    async def price(sku: str) -> int:
        runs.append(sku)
        return 1

    @app.handler("greetings", retry=["1s"])
    async def greet(name: str, context: Context) -> None:
        await context.reply(name)

    async with AppTest(app) as test:
        channel = await (await test.broker.connect()).open_channel()
        await channel.declare_queue(Queue("vault"))
        for queue in ("prices", "greetings"):
            await test.publish(queue, "x", reply_to=address)
        await test.drain()
        assert runs == []
        assert await channel.get("vault") is None
        for queue in ("prices", "greetings"):
            (parked,) = test.dead_letters(queue)
            said = str(parked.properties.headers)
            assert "reply_to: expected a direct reply address" in said
            assert "'hopback-attempts': 1" in said


@in_virtual_time
async def test_refused_request_does_not_affect_other_requests() -> None:
    app = App("slow")

    @app.handler("slow", retry=None, replies=True, concurrency=50)
    async def answer(number: int) -> int:
        await asyncio.sleep(5)
        return number

    async with AppTest(app) as test, RequestClient(test.broker) as client:
        assert await client.request("slow", 0) == 0
        asked = [asyncio.create_task(client.request("slow", n)) for n in range(9)]
        await asyncio.sleep(1)
        with pytest.raises(PublishRefused, match="404"):
            await client.request("slow", 1, exchange="missing")
        with pytest.raises(InvalidMessage, match="expected the routing key of a request"):
            await client.request("amq.rabbitmq.reply-to.AAAA.BBBB", 1)  # RabbitMQ 3.10: 541
        assert await asyncio.gather(*asked) == list(range(9))
        with pytest.raises(NoReply, match="within 2 s"):
            await client.request("slow", b"x" * 5_000, timeout="2s")
        assert await client.request("slow", 7) == 7


@in_virtual_time
async def test_exchange_deleted_in_use_ends_pending_requests_at_once() -> None:
    """Their replies are lost with the channel. Later requests are answered."""
    app = App("slow")

    @app.handler("slow", retry=None, replies=True, concurrency=50, bind={"used": ["slow"]})
    async def answer(number: int) -> int:
        await asyncio.sleep(5)
        return number

    async with AppTest(app) as test, RequestClient(test.broker) as client:
        assert await client.request("slow", 0) == 0
        assert await client.request("slow", 1, exchange="used") == 1
        asked = [asyncio.create_task(client.request("slow", n)) for n in range(9)]
        await asyncio.sleep(1)
        channel = await (await test.broker.connect("operator")).open_channel()
        await channel.delete_exchange("used")
        began = asyncio.get_running_loop().time()
        with pytest.raises((PublishRefused, NoReply, PublishInterrupted), match="404"):
            await client.request("slow", 1, exchange="used")
        ended = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(one) for one in ended} == {NoReply}
        assert asyncio.get_running_loop().time() - began < 1
        assert await client.request("slow", 7) == 7


def _forged(number: int) -> str:
    """An address that looks as RabbitMQ makes them, of a node that does not exist."""
    node = b"none%03d@host" % number
    pid = b"\x83Xw" + bytes((len(node),)) + node + bytes(12)
    return f"{REPLY_TO}.{base64.b64encode(pid).decode()}.a2V5"


@in_virtual_time
async def test_forged_reply_addresses_hardly_delay_other_replies() -> None:
    """RabbitMQ 3.10 closes the connection for each of them. The pauses do not add up."""
    app, runs = App("ask"), Counter[str]()

    @app.handler("ask", retry=["1s"], attempts=2, replies=True, concurrency=10)
    async def answer(context: Context) -> str:
        runs[context.message_id] += 1
        return context.message_id

    broker = EmbeddedBroker(version=BrokerVersion(3, 10))
    async with AppTest(app, broker=broker) as test, RequestClient(broker) as client:
        channel = await (await broker.connect()).open_channel()
        asked = []
        for number in range(60):
            if number % 3 == 0:
                forged = Properties(reply_to=_forged(number // 6), message_id=f"f-{number}")
                await channel.publish(Message("", "ask", b"{}", forged))
            else:
                request = client.request("ask", {}, timeout="10s", returns=str)
                asked.append(asyncio.create_task(request))
        assert len(await asyncio.gather(*asked)) == 40
        assert client.late == 0
        await test.drain()
        parked = {one.properties.message_id for one in test.dead_letters("ask")}
    assert parked == {f"f-{number}" for number in range(0, 60, 3)}
    assert {runs[one] for one in runs.keys() - parked} == {1}


@in_virtual_time
async def test_request_refuses_reserved_options() -> None:
    """A handler that returns a value has to declare that it is a reply."""
    async with RequestClient(EmbeddedBroker()) as client:
        for option in ({"reply_to": "x"}, {"correlation_id": "x"}, {"delay": "1s"}):
            with pytest.raises(ValueError, match="a request without"):
                await client.request("q", {}, **option)  # type: ignore[arg-type]
    app = App("x")
    with pytest.raises(InvalidDeclaration, match="return value"):

        @app.handler("q", retry=None)  # type: ignore[type-var]
        async def price() -> Price:
            return Price("a", 1)


@in_virtual_time
async def test_embedded_broker_refuses_direct_reply_misuse_like_rabbitmq() -> None:
    """A reply consumer does not ack, and it publishes on its channel."""
    connection = await EmbeddedBroker().connect()
    channel = await connection.open_channel()
    with pytest.raises(PreconditionFailed, match="cannot acknowledge"):
        await channel.consume(REPLY_TO, lambda _: None)
    channel = await connection.open_channel()
    asking = Message("", "q", properties=Properties(reply_to=REPLY_TO))
    fate = channel.publish(asking, mandatory=False)
    error = await channel.wait_closed()
    assert "fast reply consumer does not exist" in str(error)
    with pytest.raises(Exception, match="fast reply"):
        await fate
    await connection.close()


@in_virtual_time
async def test_closed_or_unconnected_request_client_fails_at_once() -> None:
    async with RequestClient(EmbeddedBroker()) as client:
        pass
    with pytest.raises(NoReply, match="the client is closed"):
        await client.request("prices", {}, timeout="1h")

    class Refusing(EmbeddedBroker):
        """A broker that refuses connections."""

        async def connect(self, name: str = "hopback") -> Any:
            """Refuse."""
            raise LoginRefused(f"{name} is refused")

    began = asyncio.get_running_loop().time()
    with pytest.raises(LoginRefused):
        await RequestClient(Refusing()).request("prices", {}, timeout="1h")
    with pytest.raises(LoginRefused):
        async with RequestClient(Refusing()):
            pass
    assert asyncio.get_running_loop().time() - began < 1


@in_virtual_time
async def test_handler_of_a_router_requests_through_its_context() -> None:
    """The request carries the trace, and its own correlation id."""
    router, seen = Router(), list[tuple[object, ...]]()

    @router.handler("shop", retry=["1s"])
    async def shop(sku: str, context: Context) -> None:
        found = await context.request("prices", {"sku": sku}, returns=Price, timeout="5s")
        seen.append((found, context.correlation_id))

    app = App("shop")
    app.include(router)

    @app.handler("prices", retry=None, replies=True)
    async def price(question: dict[str, Any], context: Context) -> Price:
        seen.append((context.headers["traceparent"], context.correlation_id != "c-1"))
        return Price(question["sku"], 100)

    async with AppTest(app) as test:
        trace = {"traceparent": "00-1-2-01"}
        await test.publish("shop", "cup", correlation_id="c-1", headers=trace)
        assert await test.drain(reraise=True) == Tally(done=2)
    assert seen == [("00-1-2-01", True), (Price("cup", 100), "c-1")]


@pytest.mark.parametrize("by_context", [True, False])
@in_virtual_time
async def test_added_app_requests_with_its_own_codecs(by_context: bool) -> None:
    first, added = App("first"), App("added", codecs=Codecs(MsgpackCodec()))
    seen: list[object] = []

    @first.handler("start", retry=["1s"])
    async def start() -> None: ...

    @added.handler("shop", retry=None)
    async def shop(sku: str, context: Context) -> None:
        ask = context.request if by_context else added.request
        packed = "application/msgpack"
        seen.append(await ask("prices", Price(sku, 0), returns=Price, content_type=packed))

    @added.handler("prices", retry=None, replies=True)
    async def price(question: Price, context: Context) -> None:
        await context.reply(Price(question.sku, 100), content_type="application/msgpack")

    async with AppTest(first) as test:
        await test.service.add(added)
        await test.advance(1)
        await test.publish("shop", "cup")
        assert await test.drain(reraise=True) == Tally(done=2)
    assert seen == [Price("cup", 100)]


@pytest.mark.parametrize("target", ["context", "app"])
@in_virtual_time
async def test_request_of_a_sync_handler_is_refused(target: str) -> None:
    app = App("shop")

    @app.handler("shop", retry=None)
    def shop(sku: str, context: Context) -> None:
        (context if target == "context" else app).request("prices", {"sku": sku})  # type: ignore[unused-coroutine]

    async with AppTest(app) as test:
        await test.publish("shop", "cup")
        with pytest.raises(
            RuntimeError, match=rf"`await {target}.request\(…\)` in an async handler"
        ):
            await test.drain(reraise=True)


@in_virtual_time
async def test_request_that_is_not_awaited_parks_the_message() -> None:
    app = App("shop")

    @app.handler("shop", retry=["1s"])
    async def shop(sku: str, context: Context) -> None:
        context.request("prices", {"sku": sku})  # type: ignore[unused-coroutine]

    async with AppTest(app) as test:
        await test.publish("shop", "cup")
        assert await test.drain() == Tally(parked=1)
