"""Mistakes of newcomers, each with the error it gives: the value found, the place, the remedy."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pytest

from hopback import (
    App,
    BreakerPolicy,
    Context,
    Depends,
    Publisher,
    RabbitMQ,
    Retry,
    Rule,
    Service,
    ServiceOptions,
    SyncPublisher,
    compose,
)
from hopback.broker import EmbeddedBroker
from hopback.errors import (
    ConnectionFailed,
    InvalidDeclaration,
    InvalidMessage,
    ProtocolError,
    PublishRefused,
)
from hopback.fields import table_size
from hopback.runtime import Codecs
from hopback.store import Database
from hopback.testing import AppTest, Tally, in_virtual_time
from hopback.wire.tables import encode_entries

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from pathlib import Path


async def _first(order: dict[str, Any]) -> None: ...


async def _second(order: dict[str, Any]) -> None: ...


async def _two_payloads(order: dict[str, Any], customer: dict[str, Any]) -> None: ...


async def _context_first(context: Context, order: dict[str, Any]) -> None: ...


async def _count(order: dict[str, Any]) -> int:
    return 1


async def _yields_async(order: dict[str, Any]) -> AsyncGenerator[None]:
    yield


def _yields(order: dict[str, Any]) -> Generator[None]:
    yield


class _YieldingHandler:
    def __call__(self, order: dict[str, Any]) -> Generator[None]:
        yield


async def _lifespan(app: App) -> AsyncGenerator[None]:
    yield


def _two_handlers(app: Any) -> None:
    app.handler("orders", retry=["30s"])(_first)
    app.handler("orders")(_second)


def _misspelt_queue(app: Any) -> object:
    app.queue("orders", retry=["30s"])
    app.handler("order")(_first)
    return app.topology


def _two_declarations(app: Any) -> None:
    app.queue("orders", retry=["30s"])
    app.queue("orders", retry=["5m"])


@pytest.mark.parametrize(
    ("mistake", "kind", "error"),
    [
        (
            lambda app: app.queue("orders", retry=["5m", "30s"]),
            InvalidDeclaration,
            "queue 'orders': retry[1]: expected a wait no shorter than the one before it ('5m'),"
            " got '30s'",
        ),
        (
            lambda app: app.queue("orders", retry=["30s", "soon"]),
            InvalidDeclaration,
            "queue 'orders': retry[1]: expected a duration like 250ms, 30s, 5m, 1h30m or 7d"
            " (at most 3650d), got 'soon'",
        ),
        (
            lambda app: app.queue("orders", retry=["30s"], attempts=0),
            InvalidDeclaration,
            "queue 'orders': attempts: expected at least 1, got 0",
        ),
        (
            _two_handlers,
            InvalidDeclaration,
            "app 'shop': queue 'orders': expected one handler, or one per type of message"
            " (`message_type=`), got _second"
            f" (test_mistakes.py:{_second.__code__.co_firstlineno}) in addition to _first"
            f" (test_mistakes.py:{_first.__code__.co_firstlineno})",
        ),
        (
            _two_declarations,
            InvalidDeclaration,
            "app 'shop': queues.orders: expected one failure plan: one handler per queue, or"
            " `message_type=` for each and `retry=` for one, got a second plan after that of"
            " `app.queue`",
        ),
        (
            lambda app: app.handler("orders", retry=["30s"])(5),
            InvalidDeclaration,
            "handler of queue 'orders': handler: expected a function, got 5",
        ),
        (
            lambda app: app.handler("orders", retries=["30s"]),
            TypeError,
            "handler: unexpected option 'retries' (did you mean retry?): expected queue, retry,",
        ),
        (
            lambda app: app.batch("orders", batchsize=10),
            TypeError,
            "batch: unexpected option 'batchsize' (did you mean batchers?): expected queue, size,",
        ),
        (
            lambda app: app.handler("orders", concurrency=0),
            InvalidDeclaration,
            "handler of queue 'orders': concurrency: expected a whole number from 1, got 0",
        ),
        (
            lambda app: app.handler("orders", deadline="0s"),
            InvalidDeclaration,
            "handler of queue 'orders': deadline: expected a duration longer than 0, got '0s'",
        ),
        (
            lambda app: app.handler("orders", retry=["1s"])(_two_payloads),
            InvalidDeclaration,
            "handler of queue 'orders': parameters: expected (payload), (payload, context: Context)"
            " or (context: Context), and further parameters as Annotated[T, Depends(provider)], got"
            " async def _two_payloads(order: 'dict[str, Any]', ",
        ),
        (
            lambda app: app.handler("orders", retry=["1s"])(_context_first),
            InvalidDeclaration,
            "handler of queue 'orders': parameters: expected (payload), (payload, context: Context)"
            " or (context: Context), and further parameters as Annotated[T, Depends(provider)], got"
            " async def _context_first(context: 'Context', order: 'dict[str, Any]') -> 'None'."
            " Put the payload first",
        ),
        (
            lambda app: app.handler("orders", retry=["1s"])(_count),
            InvalidDeclaration,
            "handler of queue 'orders': return value: expected None, Done(), Retry(reason,"
            " after=None), Park(reason), Snooze(delay) or a ConsumerStatus: publish a result with"
            " `await context.publish(...)` and annotate the handler `-> None`, or send it as the"
            " reply with `replies=True`, got async def _count(",
        ),
        (
            lambda app: app.handler("orders", retry=["1s"])(_yields_async),
            InvalidDeclaration,
            "handler of queue 'orders': handler: expected a function without `yield`, which belongs"
            " in a provider of `Depends(…)`, got async def _yields_async(",
        ),
        (
            lambda app: app.handler("orders", retry=["1s"])(_yields),
            InvalidDeclaration,
            "handler of queue 'orders': handler: expected a function without `yield`, which belongs"
            " in a provider of `Depends(…)`, got def _yields(",
        ),
        (
            lambda app: app.handler("orders", retry=["1s"], replies=True)(_YieldingHandler()),
            InvalidDeclaration,
            "handler of queue 'orders': handler: expected a function without `yield`",
        ),
        (
            lambda app: app.batch("orders", retry=["1s"])(_yields_async),
            InvalidDeclaration,
            "batch handler of queue 'orders': handler: expected a function without `yield`",
        ),
        (
            lambda app: app.every("0 3 * * *"),
            InvalidDeclaration,
            "app 'shop'.every: period: expected a duration like 250ms, 30s, 5m, 1h30m or 7d (at"
            " most 3650d), got '0 3 * * *' (did you mean cron='0 3 * * *'?)",
        ),
        (
            lambda app: app.queue("orders", retry=["20y"]),
            InvalidDeclaration,
            "queue 'orders': retry[0]: expected a duration like 250ms, 30s, 5m, 1h30m or 7d (at"
            " most 3650d), got '20y'",
        ),
        (
            lambda app: app.every(cron="61 * * * *"),
            InvalidDeclaration,
            "app 'shop'.every: cron: expected minute from 0 to 59, got '61'",
        ),
        (
            lambda app: app.every(cron="0 3 * * monday"),
            InvalidDeclaration,
            "app 'shop'.every: cron: expected day of the week from 0 to 7 or from sun to sat, got 'monday'",
        ),
        (
            lambda app: app.every(cron="0 3 * * *", timezone="Oslo"),
            InvalidDeclaration,
            "app 'shop'.every: timezone: expected a time zone like Europe/Oslo, got 'Oslo'",
        ),
        (
            lambda app: [app.handler("orders", retry=["1s"])(one) for one in (_first, _second)],
            InvalidDeclaration,
            "app 'shop': queues.orders: expected one failure plan: one handler per queue, or"
            " `message_type=` for each and `retry=` for one, got a second plan after that of _first"
            f" (test_mistakes.py:{_first.__code__.co_firstlineno})",
        ),
        (
            lambda app: app.handler("orders", retry=True),
            InvalidDeclaration,
            "queue 'orders': retry: expected a list of waits, as in `retry=['30s', '5m']` (`attempts=`",
        ),
        (
            lambda _app: Depends(_first, scope="request"),
            InvalidDeclaration,
            "Depends(_first): scope: expected run, delivery, application, got 'request' (did you"
            " mean delivery?)",
        ),
        (
            lambda app: app.handler("orders", rules=[KeyError]),
            InvalidDeclaration,
            "handler of queue 'orders': rules[0]: expected a rule, as in"
            ' `rules=[Rule(KeyError, "park")]`, got KeyError',
        ),
        (
            lambda _app: Rule(KeyError, "drop"),  # type: ignore[arg-type]
            InvalidDeclaration,
            'rule: verdict: expected "retry" or "park", got \'drop\'',
        ),
        (
            lambda app: app.batch("users", size=100, wait="1h"),
            InvalidDeclaration,
            "batch handler of queue 'users': wait: expected 0 to 300 seconds, because RabbitMQ"
            " limits how long a message is unacked, got 3600.0",
        ),
        (
            lambda app: app.handler("orders", rate="1/m", prefetch=6),
            InvalidDeclaration,
            "handler of queue 'orders': prefetch: expected at most 5 messages, those of 5 minutes"
            " at this rate, got 6",
        ),
        (
            lambda _app: BreakerPolicy(cool_down="soon"),
            InvalidDeclaration,
            "BreakerPolicy: cool_down: expected a duration like 250ms, 30s, 5m, 1h30m or 7d"
            " (at most 3650d), got 'soon'",
        ),
        (
            lambda _app: ServiceOptions(grace="-5s"),
            InvalidDeclaration,
            "ServiceOptions: grace: expected a duration like 250ms, 30s, 5m, 1h30m or 7d"
            " (at most 3650d), got '-5s'",
        ),
        (
            lambda _app: SyncPublisher("amqp://localhost", timeout="5"),
            InvalidDeclaration,
            "SyncPublisher: timeout: expected a duration like 250ms, 30s, 5m, 1h30m or 7d"
            " (at most 3650d), got '5'"
            " (add a unit, as in 5s)",
        ),
        (
            lambda _app: App(topology="shop.toml"),  # type: ignore[arg-type]
            InvalidDeclaration,
            "App: topology: expected a Topology, as `read_toml(Path(file).read_text())` returns,"
            " got 'shop.toml'",
        ),
        (
            lambda _app: compose("orders", {}, message_id=7),  # type: ignore[arg-type]
            TypeError,
            "message_id: expected a text, got 7",
        ),
        (
            lambda _app: compose("orders", {}, expiration="soon"),
            ValueError,
            "expiration: expected a duration like 250ms, 30s, 5m, 1h30m or 7d"
            " (at most 3650d), got 'soon'",
        ),
        (
            lambda _app: compose("", {}),
            ValueError,
            "routing_key: expected the name of a queue, got ''. An exchange is given by `exchange=`",
        ),
        (
            lambda _app: compose("orders", {7}),
            TypeError,
            "expected a payload of JSON types, dataclasses or models, got set, whose items have no"
            " order: send a list, such as `sorted(…)`, or an object",
        ),
        (
            lambda _app: compose("orders", {"tags": [frozenset({"new"})]}),
            TypeError,
            "expected a payload of JSON types, dataclasses or models, got frozenset, whose items",
        ),
        (
            lambda app: app.handler("orders", deadline=-5),
            InvalidDeclaration,
            "handler of queue 'orders': deadline: expected a duration from 0 to 3650d (ten years), got -5",
        ),
        (
            lambda app: app.every("500ms"),
            InvalidDeclaration,
            "app 'shop'.every: period: expected a period of 1s or more, got '500ms'",
        ),
        (
            lambda app: app.delays(longest="soon"),
            InvalidDeclaration,
            "app 'shop'.delays: longest: expected a duration like 250ms, 30s, 5m, 1h30m or 7d"
            " (at most 3650d), got 'soon'",
        ),
        (
            lambda app: app.batch("orders", retry=["1s"])(_first),
            InvalidDeclaration,
            "batch handler of queue 'orders': signature: expected async def (payloads: list[T]), got"
            " async def _first(",
        ),
        (
            lambda app: app.include(App("other")),
            InvalidDeclaration,
            "app 'shop': include: expected a Router (`Service.add` runs a second App), got <hopback",
        ),
        (
            lambda _app: App(5),  # type: ignore[arg-type]
            InvalidDeclaration,
            'App: name: expected a name, as in `App("shop")`, got 5',
        ),
        (
            lambda _app: App("shop", lifespan=_lifespan),  # type: ignore[arg-type]
            InvalidDeclaration,
            "app 'shop': lifespan: expected an async context manager: decorate the function with"
            " `@asynccontextmanager`, got async def _lifespan",
        ),
        (
            lambda _app: Service("shop", "amqp://localhost"),  # type: ignore[arg-type]
            TypeError,
            "app: expected an App, as in `Service(app, broker)`, got 'shop'",
        ),
        (
            lambda _app: ServiceOptions(ownership="mine"),  # type: ignore[arg-type]
            InvalidDeclaration,
            "ServiceOptions: ownership: expected 'declare', 'check', 'external', got 'mine'",
        ),
        (
            lambda _app: Publisher("localhost"),
            InvalidDeclaration,
            "RabbitMQ: broker URL: expected amqp://… or amqps://…, such as"
            " amqp://guest:guest@localhost:5672/, got no scheme",
        ),
        (
            lambda _app: Publisher("http://localhost:15672"),
            InvalidDeclaration,
            "RabbitMQ: broker URL: expected amqp://… or amqps://…, such as"
            " amqp://guest:guest@localhost:5672/, got the scheme 'http', which is that of the"
            " management API",
        ),
        (
            lambda app: Service(app, "amqp://localhost?hartbeat=5"),
            InvalidDeclaration,
            "RabbitMQ: broker URL: expected no options except auth_mechanism, ",
        ),
        (
            lambda _app: RabbitMQ([]),
            InvalidDeclaration,
            "RabbitMQ: broker URL: expected at least one, got none",
        ),
        (
            lambda _app: RabbitMQ(window=0),
            InvalidDeclaration,
            "RabbitMQ: window: expected at least 1 message, got 0",
        ),
        (
            lambda _app: Database("sqlite:///shop.db", remember="soon"),
            InvalidDeclaration,
            "Database: remember: expected a duration like 250ms, 30s, 5m, 1h30m or 7d"
            " (at most 3650d), got 'soon'",
        ),
        (
            lambda _app: in_virtual_time(lambda: None)(),  # type: ignore[arg-type, return-value]
            TypeError,
            "in_virtual_time: expected an async function, got def <lambda>",
        ),
        (
            lambda _app: App("shop", reply_queues="answers"),
            InvalidDeclaration,
            "App: reply_queues: expected a list of queue names, got 'answers'",
        ),
        (
            lambda _app: Codecs(max_bytes=0),
            InvalidDeclaration,
            "Codecs: max_bytes: expected at least 1, got 0",
        ),
        (
            lambda _app: SyncPublisher("amqp://localhost", connections=0),
            InvalidDeclaration,
            "SyncPublisher: connections: expected at least 1, got 0",
        ),
        (
            lambda _app: SyncPublisher("amqp://localhost").publish("orders", {}, delay="2h"),
            ValueError,
            "delay: expected none, because delays need the queues of `app.delays()`, got 2h. Publish by",
        ),
        (
            lambda _app: App("shop", codecs=cast("Any", "json")),
            InvalidDeclaration,
            "App: codecs: expected Codecs, as in `Codecs(MsgpackCodec())`, got 'json'",
        ),
        (
            lambda _app: App("shop", lifespan=cast("Any", lambda _app: None)).lifespan(),
            InvalidDeclaration,
            "app 'shop': lifespan: expected a function that returns an async context manager,"
            " got one that returns None",
        ),
        (
            lambda app: app.handler("orders", retry=["1s"], publishes=cast("Any", ["invoices"])),
            InvalidDeclaration,
            "handler of queue 'orders': publishes[0]: expected an Output, as in"
            " `publishes=[Output(\"invoices\", Invoice)]`, got 'invoices'",
        ),
        (
            lambda app: app.types("orders", cast("Any", "event-type")),
            InvalidDeclaration,
            "types of queue 'orders': type_of: expected a function, as in `by_header(\"type\")`,"
            " got 'event-type'",
        ),
        (
            lambda app: app.on_error(cast("Any", 5)),
            InvalidDeclaration,
            "app 'shop': on_error: expected a function, got 5",
        ),
        (
            _misspelt_queue,
            InvalidDeclaration,
            "app 'shop': queues.order: expected a failure plan: give `retry=` to its handler, or a"
            " topology that has a plan for it, got no failure plan (did you mean orders?)",
        ),
        (
            lambda _app: AppTest(cast("Any", "shop:app")),
            TypeError,
            "app: expected an App, as in `AppTest(app)`, got 'shop:app'",
        ),
        (
            lambda _app: EmbeddedBroker(version=cast("Any", "3.12")),
            InvalidDeclaration,
            "EmbeddedBroker: version: expected a BrokerVersion, as in `BrokerVersion(3, 12)`, got '3.12'",
        ),
        (
            lambda _app: EmbeddedBroker().faults.inject(cast("Any", "nak")),
            ValueError,
            "fault: expected one of refuse-connection, lose-confirm, nack,",
        ),
        (
            lambda _app: in_virtual_time(start=datetime(2026, 3, 1)),  # noqa: DTZ001
            InvalidDeclaration,
            "in_virtual_time: start: expected a datetime with a time zone, got datetime.datetime(2026",
        ),
    ],
)
def test_mistake_is_refused_with_place_value_and_remedy(
    mistake: Callable[[App], object], kind: type[Exception], error: str
) -> None:
    with pytest.raises(kind) as refused:
        mistake(App("shop"))
    assert str(refused.value).startswith(error)


@in_virtual_time
async def test_error_about_an_unknown_attribute_names_context_as_documented() -> None:
    app = App("shop")

    @app.handler("orders", retry=["30s"])
    async def handle(context: Context) -> None:
        context.nothing  # type: ignore[attr-defined]  # noqa: B018

    async with AppTest(app) as test:
        await test.publish("orders", {})
        with pytest.raises(AttributeError, match="'Context' object has no attribute 'nothing'"):
            await test.drain(reraise=True)


@in_virtual_time
async def test_delay_beyond_the_longest_is_refused_as_written() -> None:
    app = App("shop")
    app.delays("1h")
    app.handler("orders", retry=["30s"])(_first)
    expected = (
        r"publish: delay: expected at most 1h, the longest of `app.delays\(\)`, got 2h\. Raise it"
    )
    late = datetime(2090, 1, 1, tzinfo=UTC)
    async with AppTest(app) as test:
        with pytest.raises(InvalidDeclaration, match=expected):
            await test.publish("orders", {}, delay="2h")
        with pytest.raises(InvalidDeclaration, match=r"publish: at: .* got 2090-01-01T00:00:00"):
            await test.publish("orders", {}, at=late)


@in_virtual_time
async def test_delay_without_delay_queues_names_their_declaration() -> None:
    app = App("shop")
    app.handler("orders", retry=["30s"])(_first)
    expected = (
        r"publish: delay: expected none, because the application has no queues for delays, got 2h\."
        r" Declare them with `app.delays\(\)`$"
    )
    async with AppTest(app) as test:
        with pytest.raises(InvalidDeclaration, match=expected):
            await test.publish("orders", {}, delay="2h")


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        (lambda context: context.publish("orders", {}, dealy="2h"), "did you mean delay?"),
        (lambda context: context.publish("", "orders", {}), "got 3 positional arguments"),
        (lambda context: context.publish(5, {}), "routing_key: expected str, got int"),
        (lambda context: context.publish("orders", {}, delay="2h"), "has no queues for delays"),
    ],
)
@in_virtual_time
async def test_wrong_publish_in_a_handler_parks_its_message_at_once(
    mistake: Callable[[Any], Any], reason: str
) -> None:
    """Every further run would fail in the same way."""
    app = App("shop")

    @app.handler("orders", retry=["30s"], rules=[Rule(Exception, "retry")])
    async def handle(context: Context) -> None:
        await mistake(context)

    async with AppTest(app) as test:
        await test.publish("orders", {})
        assert await test.drain() == Tally(parked=1)
        test.assert_parked("orders", reason=reason)


@in_virtual_time
async def test_wrong_timeout_of_a_request_names_the_option() -> None:
    async with AppTest(App("shop")) as test:
        with pytest.raises(ValueError, match=r"^timeout: expected a duration like .*, got 'soon'$"):
            await test.request("orders", {}, timeout="soon")


@in_virtual_time
async def test_publisher_that_was_not_started_refuses_to_publish_at_once() -> None:
    publisher, loop = Publisher(EmbeddedBroker()), asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ConnectionFailed, match=r"not connected.*`async with Publisher\(…\)`"):
        await publisher.publish("orders", {})
    assert loop.time() == began
    await publisher.close()
    with pytest.raises(ConnectionFailed, match="the publisher is closed"):
        await publisher.publish("orders", {})


@in_virtual_time
async def test_publish_that_closes_its_channel_names_the_remedy() -> None:
    async with Publisher(EmbeddedBroker(max_body_bytes=1000)) as publisher:
        with pytest.raises(PublishRefused, match=r"no exchange 'nope'.*Declare the exchange"):
            await publisher.publish("orders", {}, exchange="nope")
        with pytest.raises(PublishRefused, match=r"message size .*max_message_size"):
            await publisher.publish("orders", "x" * 2000)


async def test_long_message_id_is_reported_as_message_id_and_not_as_correlation_id() -> None:
    async with Publisher(EmbeddedBroker()) as publisher:
        with pytest.raises(InvalidMessage, match=r"property message_id: .* 255 bytes, got 300"):
            await publisher.publish("orders", {}, message_id="i" * 300)
        with pytest.raises(InvalidMessage, match="property correlation_id: "):
            await publisher.publish("orders", {}, correlation_id="c" * 300)


@pytest.mark.parametrize(
    ("headers", "place"),
    [
        ({"tenant": {1}}, "table key 'tenant'"),
        ({"t": {"a": [{1}]}}, "table key 't': table key 'a'"),
    ],
)
def test_header_of_a_type_without_encoding_is_refused_by_name(headers: Any, place: str) -> None:
    properties = compose("orders", {}, headers=headers).properties
    with pytest.raises(TypeError, match=f"{place}: expected an AMQP field value, got set"):
        table_size(properties.headers)
    with pytest.raises(ProtocolError, match=f"{place}: expected an AMQP field value"):
        encode_entries(properties.headers)


@in_virtual_time
async def test_outcome_with_a_wrong_wait_is_parked_with_the_expected_fields() -> None:
    app = App("shop")

    @app.handler("orders", retry=["1s"])
    async def handle(order: dict[str, Any]) -> None:
        raise Retry("busy", after="soon")

    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.drain()
        test.assert_parked(
            "orders", reason="after='soon') (Retry), expected a reason that is a text"
        )


async def test_second_run_of_a_service_is_refused_while_the_first_runs() -> None:
    service = Service(App("shop"), EmbeddedBroker())
    running = asyncio.create_task(service.run())
    await service.ready.wait()
    with pytest.raises(RuntimeError, match="this Service already runs"):
        await service.run()
    service.stop()
    await running


async def test_inbox_mark_of_another_value_names_the_delivery(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'shop.db'}")
    async with database.transaction() as tx:
        with pytest.raises(TypeError, match=r"first_time\(consumer, context.delivery\).*got dict"):
            await tx.first_time("orders", cast("Any", {"id": 1}))
    await database.close()
