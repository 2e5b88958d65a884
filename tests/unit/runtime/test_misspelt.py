"""Wrong options of rules, handlers, publishes and requests are refused where they are written."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic
import pytest

from hopback import (
    App,
    Context,
    Message,
    RequestClient,
    Rule,
    Service,
    ServiceOptions,
    SyncPublisher,
    Verdict,
    compose,
)
from hopback.broker import EmbeddedBroker
from hopback.errors import InvalidDeclaration
from hopback.observe.events import Bus
from hopback.policy.breaker import BreakerPolicy
from hopback.runtime import Environment
from hopback.runtime.health import Health
from hopback.testing import AppTest, in_virtual_time
from hopback.testing.kit import Producer
from hopback.topology import Queue

if TYPE_CHECKING:
    from collections.abc import Callable

_ANY: Any = None


async def _handle(context: Context) -> None:
    raise KeyError("x")


async def _insert(rows: list[dict[str, Any]]) -> None:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            [KeyError],
            r"rules\[0\]: expected .*`rules=\[Rule\(KeyError, \"park\"\)\]`, got KeyError",
        ),
        ([Rule(OSError, "park"), "park"], r"rules\[1\].*got 'park'"),
        ([None], r"rules\[0\].*got None"),
        (Rule(KeyError, "park"), r"rules: expected a list of rules"),
        ("park", r"rules: expected a list of rules"),
        (KeyError, r"rules: expected a list of rules"),
    ],
)
@pytest.mark.parametrize(
    "declare",
    [
        lambda app, rules: app.handler("orders", retry=["1s"], rules=rules)(_handle),
        lambda app, rules: app.batch("orders", retry=["1s"], rules=rules)(_insert),
        lambda app, rules: app.every("1m", name="orders", rules=rules)(_handle),
    ],
    ids=["handler", "batch", "every"],
)
def test_invalid_rules_are_refused_at_declaration(
    declare: Callable[[App, Any], object], rules: Any, message: str
) -> None:
    with pytest.raises(InvalidDeclaration, match=message):
        declare(App("shop"), rules)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((KeyError, "parc"), r"verdict: expected \"retry\" or \"park\", got 'parc'"),
        ((KeyError, None), r"verdict: .*got None"),
        (("KeyError", "park"), r"exception: expected an exception class"),
        ((int, "park"), r"exception: expected an exception class"),
        (((), "park"), r"exception: expected an exception class"),
        ((KeyError, "park", True), r"when: expected a function"),
        ((KeyError, "retry", None, "soon"), r"after: expected a duration"),
        ((KeyError, "retry", None, float("nan")), r"after: expected a duration"),
    ],
)
def test_misspelt_rule_is_refused_where_it_is_made(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidDeclaration, match=message):
        Rule(*arguments)


@pytest.mark.parametrize(
    ("verdict", "retried"), [("park", 0), (Verdict.PARK, 0), ("retry", 1), (Verdict.RETRY, 1)]
)
@in_virtual_time
async def test_verdicts_may_be_text(verdict: Any, retried: int) -> None:
    app = App("shop")
    app.handler("orders", retry=["1s"], attempts=2, rules=[Rule(KeyError, verdict)])(_handle)
    async with AppTest(app) as test:
        await test.publish("orders", {})
        tally = await test.drain()
        assert (tally.retried, tally.parked) == (retried, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"concurrency": "10"},
        {"prefetch": 70_000},
        {"deadline": float("nan")},
        {"deadline": float("inf")},
        {"key": "tenant"},
        {"breaker": True},
    ],
)
def test_handler_options_of_another_type_are_refused(options: Any) -> None:
    with pytest.raises(InvalidDeclaration, match=next(iter(options))):
        App("shop").handler("orders", retry=["1s"], **options)


def test_accepted_rule_that_does_not_exist_is_refused_with_suggestion() -> None:
    assert ServiceOptions(accept=["at-most-once"]).accept == ["at-most-once"]
    with pytest.raises(InvalidDeclaration) as refused:
        ServiceOptions(accept=["at-most-once", "at-most-onse"])
    assert str(refused.value) == (
        "ServiceOptions: accept: expected a rule that `hopback topology check` reports,"
        " got 'at-most-onse' (did you mean at-most-once?)"
    )


def test_unhandled_that_is_not_an_outcome_is_refused() -> None:
    with pytest.raises(InvalidDeclaration, match="unhandled: expected an outcome"):
        App("shop").types("orders", unhandled="park")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_breaker_without_finite_cool_down_is_refused(value: float) -> None:
    with pytest.raises(InvalidDeclaration, match="cool_down"):
        BreakerPolicy(cool_down=value)


# --- an unexpected error in a worker ----------------------------------------------------------------


class _Unfit(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("no answer")


class _Odd(Exception, metaclass=_Unfit):
    pass


@pytest.mark.parametrize(
    "rule",
    [Rule(_Odd, "park"), Rule(KeyError, "park", when=lambda _: sys.exit())],
    ids=["check raises", "predicate exits"],
)
@in_virtual_time
async def test_rule_that_raises_does_not_apply(rule: Rule) -> None:
    app = App("shop")
    app.handler("orders", retry=["1s"], attempts=2, rules=[rule])(_handle)
    async with AppTest(app) as test:
        await test.publish("orders", {})
        assert (await test.drain()).parked == 1
        assert Health(test.service, time=lambda: 0.0).ready().ok


def _broken_batch_observer(*_: object) -> Any:
    raise RuntimeError("the tracer is broken")


def _broken_wrap(*_: object) -> Any:
    async def run(_delivery: object) -> Any:
        raise RuntimeError("the tracer is broken")

    return run


@pytest.mark.parametrize("way", ["handler", "batch"])
@in_virtual_time
async def test_message_follows_its_plan_if_code_around_its_run_fails(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("shop")
    if way == "handler":
        app.handler("orders", retry=["1s"], attempts=2)(_handle)
    else:
        app.batch("orders", retry=["1s"], attempts=2)(_insert)
    said: list[tuple[str, Any]] = []
    environment = Environment(
        bus=Bus(lambda name, fields: said.append((name, fields.get("reason")))),
        wrap_run=_broken_wrap,
        observe_batch=_broken_batch_observer,
    )
    broker = EmbeddedBroker()
    service = Service(app, broker, environment=environment)
    running = asyncio.create_task(service.run())
    await service.ready.wait()
    Producer(broker.node).send(compose("orders", {}))
    await asyncio.sleep(10)
    assert len(broker.snapshot().queue("orders.dlq").ready) == 1
    assert Health(service, time=lambda: 0.0).ready().ok
    service.stop()
    await running
    reason = "RuntimeError: the tracer is broken"
    delivered = [one for one in said if one[0].startswith("delivery.")]
    assert delivered == [("delivery.retried", reason), ("delivery.parked", reason)]
    assert not caplog.records


# --- publishing -------------------------------------------------------------------------------------

_PUBLISHES: dict[str, Callable[..., Any]] = {
    "compose": compose,
    "App": App("shop").publish,
    "App.publish_sync": App("shop").publish_sync,
    "Context": Context(_ANY, _ANY, _ANY).publish,
    "Context.publish_sync": Context(_ANY, _ANY, _ANY).publish_sync,
    "SyncPublisher": SyncPublisher(EmbeddedBroker()).publish,
}


@pytest.mark.parametrize("way", _PUBLISHES)
@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("dealy", r" \(did you mean delay\?\)"),
        ("mesage_id", r" \(did you mean message_id\?\)"),
        ("type", r" \(did you mean \w*_type\?\)"),
        ("ttl", ""),
    ],
)
def test_unknown_publish_option_is_refused_with_suggestion(
    way: str, option: str, meant: str
) -> None:
    expected = f"unexpected option '{option}'{meant}: expected exchange, message_id, .*expiration"
    with pytest.raises(TypeError, match=expected):
        _PUBLISHES[way]("orders", {}, **{option: "2h"})


_MESSAGE = Message("", "orders", b"1")


@pytest.mark.parametrize("way", _PUBLISHES)
@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            ("", "orders", {}),
            TypeError,
            "publish_or_compose\\(routing_key, payload, exchange=…\\)`, got 3",
        ),
        ((_MESSAGE,), TypeError, "got a Message: write `send\\(message\\)`"),
        (("orders", _MESSAGE), TypeError, "got a Message: write `send\\(message\\)`"),
        ((Queue("orders"), {}), TypeError, "expected str, got Queue: give its name, 'orders'"),
        ((None, {}), TypeError, "routing_key: expected str, got NoneType"),
        (("", {}), ValueError, "expected the name of a queue, got ''"),
        (("orders",), TypeError, "missing 1 required positional argument: 'payload'"),
    ],
)
def test_wrong_publish_argument_names_the_right_call(
    way: str, given: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(
        error, match=text.replace("publish_or_compose", r"(publish(_sync)?|compose)")
    ):
        _PUBLISHES[way](*given)


def test_send_of_a_payload_names_publish() -> None:
    sends: list[Callable[..., Any]] = [
        App("shop").send,
        Context(_ANY, _ANY, _ANY).send,
        SyncPublisher(EmbeddedBroker()).send,
    ]
    for send in sends:
        with pytest.raises(TypeError, match=r"expected a Message, got dict\. `publish\(queue"):
            send({"id": 1})


@in_virtual_time
async def test_unknown_option_of_a_handler_request_or_test_is_refused() -> None:
    app, refused = App("shop", reply_queues=["answers"]), list[str]()

    async def expect(publishing: Callable[[], Any]) -> None:
        with pytest.raises(TypeError) as error:
            await publishing()
        refused.append(str(error.value))

    @app.handler("orders", retry=["1s"])
    async def order(context: Context) -> None:
        wrong: Any = {"dealy": "2h"}
        await expect(lambda: context.publish("orders", {}, **wrong))
        await expect(lambda: context.reply({}, **wrong))
        await expect(lambda: app.publish("orders", {}, **wrong))

    async with AppTest(app) as test:
        await test.publish("orders", {}, reply_to="answers")
        await test.drain()
        wrong: Any = {"timout": 5}
        await expect(lambda: test.publish("orders", {}, **wrong))
        await expect(lambda: test.request("orders", {}, **wrong))
        await expect(lambda: app.request("orders", {}, **wrong))
        async with RequestClient(test.broker) as client:
            await expect(lambda: client.request("orders", {}, **wrong))
    assert len(refused) == 7
    assert all("did you mean delay?" in one for one in refused[:3])
    assert all("did you mean timeout?" in one for one in refused[4:])


@dataclasses.dataclass
class _Order:
    total: float


class _Model(pydantic.BaseModel):
    total: float
    orders: list[_Order]
    note: str | None = None


class _Constants(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
    total: float


class _Texts(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="strings")
    total: float


class _Struct(msgspec.Struct):
    total: float
    more: list[dict[str, float]]
    note: str | None = None


def test_finite_models_are_published_as_their_library_writes_them() -> None:
    assert compose("q", _Model(total=1, orders=[], note="NaN")).body == (
        b'{"total":1.0,"orders":[],"note":"NaN"}'
    )
    assert compose("q", _Struct(1.0, [])).body == b'{"total":1.0,"more":[],"note":null}'
    assert compose("q", _Texts(total=float("nan"))).body == b'{"total":"NaN"}'


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ({"x": float("nan")}, r"nan at \$\['x'\]"),
        ([1.0, {"y": [float("-inf")]}], r"-inf at \$\[1\]\['y'\]\[0\]"),
        (_Order(float("inf")), r"inf at \$\['total'\]"),
        (float("nan"), r"nan at \$"),
        (_Model(total=float("nan"), orders=[]), r"nan at \$\['total'\]"),
        (_Model(total=1, orders=[_Order(float("inf"))]), r"inf at \$\['orders'\]\[0\]\['total'\]"),
        (_Constants(total=float("nan")), r"nan at \$\['total'\]"),
        (_Struct(float("-inf"), []), r"-inf at \$\['total'\]"),
        (_Struct(1.0, [{"x": float("nan")}]), r"nan at \$\['more'\]\[0\]\['x'\]"),
    ],
)
def test_payload_with_nan_or_infinity_is_refused_with_its_place(payload: Any, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        compose("orders", payload)


@pytest.mark.parametrize("option", ["delay", "expiration"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_publish_wait_without_end_is_refused(option: str, value: float) -> None:
    wrong: Any = {option: value}
    with pytest.raises(ValueError, match="expected a duration"):
        compose("orders", {}, **wrong)


@in_virtual_time
async def test_unknown_event_or_field_is_refused_by_the_test_kit() -> None:
    app = App("shop")
    app.handler("orders", retry=["1s"])(_handle)
    async with AppTest(app) as test:
        with pytest.raises(ValueError, match=r"did you mean delivery\.parked"):
            test.find_events("delivery.parkt")
        with pytest.raises(ValueError, match="did you mean attempt"):
            test.find_events("delivery.parked", atempt=2)
