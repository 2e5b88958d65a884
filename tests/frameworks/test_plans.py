"""Results of consumers of other libraries, and the settlement that the plan decides."""

# mypy: disable-error-code="import-untyped, no-untyped-call"

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aio_pika
import pika
import pytest
from faststream import AckPolicy
from faststream.exceptions import AckMessage, NackMessage, RejectMessage
from faststream.rabbit import RabbitBroker, RabbitMessage, RabbitQueue, TestRabbitBroker
from pika.adapters.asyncio_connection import AsyncioConnection

from hopback import Done, Park, Retry, Rule, Snooze, Verdict
from hopback.broker.server import ClockKind, ServerSettings
from hopback.errors import ConnectionFailed, InvalidDeclaration, TopologyConflict, UnsafeOperation
from hopback.integrations.aio_pika import AioPikaPlans
from hopback.integrations.faststream import FastStreamPlans
from hopback.integrations.pika import PikaPlans
from hopback.testing import BrokerThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = pytest.mark.socket

_WAITING, _PARKED, _DONE, _UNACKED = "waiting", "parked", "done", "unacked"
_RULES = (Rule(KeyError, Verdict.PARK),)


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """A broker with a manual clock: messages in retry queues stay there."""
    with BrokerThread(ServerSettings(port=0, http_port=0, clock=ClockKind.VIRTUAL)) as broker:
        yield broker


def _place(broker: BrokerThread) -> str | None:
    """Return where the only message is, or None while it moves."""
    found = {queue.name: queue for queue in broker.snapshot().queues}
    if "orders" not in found:
        return None
    if found["orders"].unacked:
        return _UNACKED
    if found["orders"].ready:
        return None
    if "orders.dlq" in found and found["orders.dlq"].ready:
        return _PARKED
    if "orders.retry.1h" in found and found["orders.retry.1h"].ready:
        return _WAITING
    return _DONE


async def _wait_for_place(broker: BrokerThread, place: str, ran: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not ran() or await asyncio.to_thread(_place, broker) != place:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _header(broker: BrokerThread, queue: str, name: str) -> Any:
    message = next(one for one in broker.snapshot().queues if one.name == queue).messages[0]
    return message.properties.headers[name]


def _fill(url: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    channel.basic_publish("", "orders", b'{"id": 1}', pika.BasicProperties(message_id="m1"))
    connection.close()


# --- aio-pika


@asynccontextmanager
async def _aio_pika(url: str, **options: Any) -> AsyncIterator[tuple[AioPikaPlans, Any]]:
    async with await aio_pika.connect_robust(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("orders", durable=True)
        plans = AioPikaPlans(connection, **options)
        plans.queue("orders", retry=["1h"], rules=_RULES)
        async with plans:
            yield plans, queue


async def _process(message: Any) -> None:
    async with message.process():
        raise ValueError("no such item")


async def _process_and_park(message: Any) -> None:
    async with message.process(requeue=True):
        raise KeyError("item")


async def _process_successfully(message: Any) -> None:
    async with message.process():
        pass


async def _raise(message: Any) -> None:
    raise ValueError("no such item")


def _callback_raising(error: BaseException) -> Callable[..., None]:
    """Return a consumer callback for any library that raises the error."""

    def body(*_: Any) -> None:
        raise error

    return body


async def _park_within(message: Any) -> None:
    async with message.process():
        raise Park("hopeless")


async def _reject_in_except(message: Any) -> None:
    try:
        raise ValueError("no such item")
    except ValueError:
        await message.reject(requeue=False)


async def _reject_in_process(message: Any) -> None:
    async with message.process(ignore_processed=True):
        await message.reject()


async def _do_not_settle(message: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("callback", "place"),
    [
        (_process_successfully, _DONE),
        (_process, _WAITING),
        (_process_and_park, _PARKED),
        (_reject_in_process, _PARKED),
        (_raise, _WAITING),
        (_reject_in_except, _PARKED),
        (_do_not_settle, _UNACKED),
        (lambda message: message.ack(), _DONE),
        (lambda message: message.reject(), _PARKED),
        (lambda message: message.reject(requeue=True), _WAITING),
        (lambda message: message.nack(), _WAITING),
        (lambda message: message.nack(requeue=False), _PARKED),
        (lambda message: Done(), _DONE),
        (lambda message: Park("hopeless"), _PARKED),
        (lambda message: Retry("later"), _WAITING),
        (lambda message: Snooze(5), _WAITING),
        (_callback_raising(Park("hopeless")), _PARKED),
        (_callback_raising(Retry("later")), _WAITING),
        (_park_within, _PARKED),
    ],
)
async def test_aio_pika_callback_decides_settlement(
    broker: BrokerThread, callback: Callable[[Any], Any], place: str
) -> None:
    """Requeues and exceptions follow the plan, rejects park, and a message that is not settled
    stays unacked.
    """
    _fill(broker.url)
    ran: list[Any] = []

    def record_and_call(message: Any) -> Any:
        ran.append(message)
        return callback(message)

    async with _aio_pika(broker.url) as (plans, queue):
        await plans.consume(queue, record_and_call)
        await _wait_for_place(broker, place, lambda: bool(ran))
        assert ran[0].message_id == "m1"  # other attributes come from the original message
        if callback in (_process, _raise):
            record = await asyncio.to_thread(_header, broker, "orders.retry.1h", "hopback-failure")
            assert '"type":"ValueError"' in record


async def test_iterated_message_is_settled_once_by_its_plan(broker: BrokerThread) -> None:
    _fill(broker.url)
    async with _aio_pika(broker.url) as (plans, queue):
        async with queue.iterator() as messages:
            async for each in messages:
                message = await plans.message("orders", each)
                assert message is not None
                with pytest.raises(ValueError, match="no such item"):
                    await _process(message)
                with pytest.raises(aio_pika.exceptions.MessageProcessError):
                    await message.ack()
                break
        await _wait_for_place(broker, _WAITING, lambda: True)


async def test_aio_pika_plans_reject_no_ack_multiple_ack_and_unplanned_queue(
    broker: BrokerThread,
) -> None:
    _fill(broker.url)
    async with _aio_pika(broker.url) as (plans, queue):
        with pytest.raises(UnsafeOperation, match="no_ack"):
            await plans.consume(queue, _do_not_settle, no_ack=True)
        message = await queue.get()
        with pytest.raises(UnsafeOperation, match="has no plan"):
            await plans.message("others", message)
        taken = await plans.message("orders", message)
        assert taken is not None
        with pytest.raises(UnsafeOperation, match="multiple"):
            await taken.ack(multiple=True)
        await taken.ack()
        _fill(broker.url)
        with pytest.raises(UnsafeOperation, match="no_ack"):
            await plans.message("orders", await queue.get(no_ack=True))


async def test_start_fails_without_plan_with_conflicting_queue_and_unreachable_broker(
    broker: BrokerThread,
) -> None:
    """A second plan for a queue is an error as well."""
    _fill(broker.url)
    async with await aio_pika.connect_robust(broker.url) as connection:
        plans = AioPikaPlans(connection)
        with pytest.raises(InvalidDeclaration, match="a plan for at least one queue"):
            await plans.start()
        plans.queue("orders", retry=["1h"])
        with pytest.raises(InvalidDeclaration, match="expected one plan, got a second one"):
            plans.queue("orders")
        channel = await connection.channel()
        await channel.declare_queue("orders.retry.1h", durable=True)
        with pytest.raises(TopologyConflict, match=r"orders\.retry\.1h"):
            await plans.start()
        unreachable = AioPikaPlans(connection, publish_to="amqp://127.0.0.1:1", timeout=0.2)
        unreachable.queue("orders", retry=["1h"])
        with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
            await unreachable.start()


async def test_redelivered_copy_of_handled_message_is_acked_without_run(
    broker: BrokerThread,
) -> None:
    """The copy is the retry message itself, as after a lost ack."""
    _fill(broker.url)
    runs: list[int] = []

    async def fail_once(message: Any) -> None:
        async with message.process():
            runs.append(1)
            if len(runs) == 1:
                raise ValueError("no such item")

    async with _aio_pika(broker.url) as (plans, queue):
        await plans.consume(queue, fail_once)
        await _wait_for_place(broker, _WAITING, lambda: bool(runs))
        waiting = next(q for q in broker.snapshot().queues if q.name == "orders.retry.1h")
        original = waiting.messages[0]
        headers: Any = dict(original.properties.headers)
        copy = aio_pika.Message(original.body, headers=headers, message_id="m1")
        await asyncio.to_thread(broker.advance, 3601)
        await _wait_for_place(broker, _DONE, lambda: len(runs) == 2)
        await queue.channel.default_exchange.publish(copy, "orders")
        await _wait_for_place(broker, _DONE, lambda: True)
    assert len(runs) == 2


# --- pika


def _consume_blocking(
    broker: BrokerThread, callback: Callable[..., Any], place: str, *, prefetch: int = 10
) -> None:
    """Consume with the blocking adapter until the message is in the expected place."""
    parameters = pika.URLParameters(broker.url)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    ran: list[Any] = []

    def record_and_call(*arguments: Any) -> Any:
        ran.append(arguments)
        return callback(*arguments)

    with PikaPlans(parameters) as plans:
        plans.queue("orders", retry=["1h"], rules=_RULES)
        plans.consume(channel, "orders", record_and_call)
        deadline = time.monotonic() + 20
        while not ran or _place(broker) != place:
            connection.process_data_events(0.01)
            assert time.monotonic() < deadline, (_place(broker), place)
    connection.close()


def _nack_in_except(channel: Any, method: Any, properties: Any, body: bytes) -> None:
    try:
        raise ValueError("no such item")
    except ValueError:
        channel.basic_nack(method.delivery_tag, requeue=True)


def _raise_in_pika(channel: Any, method: Any, properties: Any, body: bytes) -> None:
    raise ValueError("no such item")


@pytest.mark.parametrize(
    ("callback", "place"),
    [
        (lambda ch, method, *_: ch.basic_ack(method.delivery_tag), _DONE),
        (lambda ch, method, *_: ch.basic_ack(method.delivery_tag, multiple=True), _DONE),
        (lambda ch, method, *_: ch.basic_ack(multiple=True), _DONE),
        (lambda ch, method, *_: ch.basic_nack(method.delivery_tag), _WAITING),
        (lambda ch, method, *_: ch.basic_nack(method.delivery_tag, requeue=False), _PARKED),
        (lambda ch, method, *_: ch.basic_reject(method.delivery_tag), _WAITING),
        (lambda ch, method, *_: ch.basic_reject(method.delivery_tag, requeue=False), _PARKED),
        (_nack_in_except, _WAITING),
        (_raise_in_pika, _WAITING),
        (lambda *_: Park("hopeless"), _PARKED),
        (_callback_raising(Park("hopeless")), _PARKED),
        (_callback_raising(Snooze(5)), _WAITING),
        (lambda *_: None, _UNACKED),
    ],
)
def test_pika_callback_decides_settlement(
    broker: BrokerThread, callback: Callable[..., Any], place: str
) -> None:
    """Requeues and exceptions follow the plan, rejects park, and a message that is not settled
    stays unacked.
    """
    _fill(broker.url)
    _consume_blocking(broker, callback, place)
    if callback in (_nack_in_except, _raise_in_pika):
        record = _header(broker, "orders.retry.1h", "hopback-failure")
        assert '"message":"no such item"' in record


def test_pika_plans_reject_auto_ack_unplanned_queue_and_second_ack(broker: BrokerThread) -> None:
    _fill(broker.url)
    parameters = pika.URLParameters(broker.url)
    plans = PikaPlans(parameters)
    plans.queue("orders", retry=["1h"])
    with pytest.raises(UnsafeOperation, match="auto_ack"):
        plans.consume(None, "orders", _raise_in_pika, auto_ack=True)
    with pytest.raises(UnsafeOperation, match="has no plan"):
        plans.callback("others", _raise_in_pika)
    errors: list[str] = []

    def twice(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        channel.basic_ack(method.delivery_tag)
        try:
            channel.basic_ack(method.delivery_tag)
        except UnsafeOperation as error:
            errors.append(str(error))

    _consume_blocking(broker, twice, _DONE)
    assert "already settled" in errors[0]


def test_blocking_connection_survives_while_the_retry_queue_is_missing(
    broker: BrokerThread,
) -> None:
    """The message stays unacked and heartbeats continue. It moves once the retry queue exists again."""
    _fill(broker.url)
    deleted: list[bool] = []

    def delete_and_fail(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if not deleted:
            channel.queue_delete("orders.retry.1h")
            deleted.append(True)
        raise ValueError("no such item")

    _consume_blocking(broker, delete_and_fail, _WAITING)


async def test_exception_of_async_callback_on_asyncio_adapter_is_retried(
    broker: BrokerThread,
) -> None:
    _fill(broker.url)
    parameters = pika.URLParameters(broker.url)
    plans = PikaPlans(parameters)
    plans.queue("orders", retry=["1h"])
    await asyncio.to_thread(plans.start)
    ran: list[bool] = []

    async def callback(*_: Any) -> None:
        await asyncio.sleep(0)
        ran.append(True)
        raise ValueError("no such item")

    closed = asyncio.Event()
    connection = AsyncioConnection(
        parameters,
        on_open_callback=lambda opened: opened.channel(
            on_open_callback=lambda channel: plans.consume(channel, "orders", callback)
        ),
        on_close_callback=lambda *_: closed.set(),
    )
    await _wait_for_place(broker, _WAITING, lambda: bool(ran))
    connection.close()
    await closed.wait()
    await asyncio.to_thread(plans.close)


# --- FastStream


@asynccontextmanager
async def _faststream(
    url: str, body: Callable[[RabbitMessage], Any], **subscriber: Any
) -> AsyncIterator[list[Any]]:
    ran: list[Any] = []
    framework = RabbitBroker(url, logger=None)
    plans = FastStreamPlans(framework)
    plans.queue("orders", retry=["1h"], rules=_RULES)

    @framework.subscriber(RabbitQueue("orders", durable=True), **subscriber)
    async def handle(order: dict[str, int], message: RabbitMessage) -> None:
        ran.append(order)
        result = body(message)
        if asyncio.iscoroutine(result):
            await result

    async with plans:
        await framework.start()
        yield ran
        await framework.stop()


_MANUAL = {"ack_policy": AckPolicy.MANUAL}


@pytest.mark.parametrize(
    ("body", "options", "place"),
    [
        (lambda message: None, {}, _DONE),
        (_callback_raising(ValueError("no such item")), {}, _WAITING),
        (_callback_raising(KeyError("item")), {}, _PARKED),
        (_callback_raising(AckMessage()), {}, _DONE),
        (_callback_raising(NackMessage()), {}, _WAITING),
        (_callback_raising(RejectMessage()), {}, _PARKED),
        (_callback_raising(Park("hopeless")), {}, _PARKED),
        (_callback_raising(Retry("later")), {}, _WAITING),
        (_callback_raising(Done()), _MANUAL, _DONE),
        (lambda message: message.nack(), {}, _WAITING),
        (lambda message: message.reject(), {}, _PARKED),
        (_callback_raising(ValueError("x")), {"ack_policy": AckPolicy.NACK_ON_ERROR}, _WAITING),
        (lambda message: message.ack(), _MANUAL, _DONE),
        (_callback_raising(ValueError("x")), _MANUAL, _WAITING),
        (lambda message: None, _MANUAL, _WAITING),
    ],
)
async def test_faststream_subscriber_decides_settlement(
    broker: BrokerThread, body: Callable[[RabbitMessage], Any], options: Any, place: str
) -> None:
    """Exceptions follow the plan and its rules, regardless of FastStream's ack policy."""
    _fill(broker.url)
    async with _faststream(broker.url, body, **options) as ran:
        await _wait_for_place(broker, place, lambda: bool(ran))


@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.ACK_FIRST])
async def test_start_rejects_ack_policies_that_ack_without_a_plan(
    broker: BrokerThread, policy: AckPolicy
) -> None:
    with pytest.raises(UnsafeOperation, match=policy.name):
        async with _faststream(broker.url, lambda message: None, ack_policy=policy):
            pass


async def test_invalid_payload_is_parked_without_retry(broker: BrokerThread) -> None:
    """Neither failed validation nor invalid JSON is retried."""
    for number, payload in enumerate((b'"no order"', b"\xff{"), 1):
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        json_type = pika.BasicProperties(content_type="application/json")
        channel.basic_publish("", "orders", payload, json_type)
        connection.close()
        async with _faststream(broker.url, lambda message: None) as ran:
            await _wait_for_place(broker, _PARKED, lambda: True)
            assert ran == []
        queues = {queue.name: len(queue.ready) for queue in broker.snapshot().queues}
        assert (queues["orders.dlq"], queues["orders.retry.1h"]) == (number, 0)


async def test_message_is_retried_if_its_reply_cannot_be_published(broker: BrokerThread) -> None:
    """The message is settled after its reply."""
    _fill(broker.url)
    framework = RabbitBroker(broker.url, logger=None)
    plans = FastStreamPlans(framework)
    plans.queue("orders", retry=["1h"])

    unsendable: Any = {"price": object()}

    @framework.subscriber(RabbitQueue("orders", durable=True))
    @framework.publisher("receipts", headers=unsendable)
    async def handle(order: dict[str, int]) -> dict[str, int]:
        return order

    async with plans:
        await framework.start()
        await _wait_for_place(broker, _WAITING, lambda: True)
        await framework.stop()


async def test_faststream_test_broker_works_with_plans() -> None:
    """Unit tests of subscribers do not start the plans."""
    framework = RabbitBroker("amqp://127.0.0.1:1")
    plans = FastStreamPlans(framework)
    plans.queue("orders", retry=["1h"])
    ran: list[int] = []

    @framework.subscriber("orders")
    async def handle(order: int) -> None:
        ran.append(order)

    async with TestRabbitBroker(framework) as test_broker:
        await test_broker.publish(7, "orders")
    assert ran == [7]


async def test_subscriber_started_without_plans_keeps_messages_unacked(
    broker: BrokerThread,
) -> None:
    """The broker redelivers the message after the subscriber stops."""
    _fill(broker.url)
    framework = RabbitBroker(broker.url, logger=None)
    plans = FastStreamPlans(framework)
    plans.queue("orders", retry=["1h"])

    @framework.subscriber(RabbitQueue("orders", durable=True))
    async def handle(order: dict[str, int]) -> None:
        raise AssertionError("the handler must not run")

    await framework.start()
    await _wait_for_place(broker, _UNACKED, lambda: True)
    await framework.stop()
    ready = {queue.name: len(queue.ready) for queue in broker.snapshot().queues}
    assert ready["orders"] == 1
