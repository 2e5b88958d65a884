"""Declaring an application: signatures, options and plans that make no sense are refused by name."""

from __future__ import annotations

import functools
from collections.abc import Coroutine  # noqa: TC003 - the annotations are resolved
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from hopback import App, BreakerPolicy, Context, Outcome, Park, Service
from hopback.broker.embedded import EmbeddedBroker
from hopback.designs import DESIGNS
from hopback.errors import InvalidDeclaration
from hopback.runtime.handler import (
    BatchHandler,
    BatchOptions,
    Handler,
    HandlerOptions,
    inspect_handler,
)
from hopback.runtime.push import PushTarget

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS = HandlerOptions()


async def _payload_only(order: dict[str, Any]) -> None: ...
async def _both(order: dict[str, Any], context: Context) -> None: ...
async def _context_only(context: Context) -> None: ...
async def _nothing() -> None: ...
async def _by_name(order, context) -> None: ...  # type: ignore[no-untyped-def]
def _sync(order: str) -> None: ...


class _Callable:
    async def __call__(self, order: bytes) -> None: ...


@pytest.mark.parametrize(
    ("call", "decodes", "context", "is_async"),
    [
        (_payload_only, True, False, True),
        (_both, True, True, True),
        (_context_only, False, True, True),
        (_nothing, False, False, True),
        (_by_name, True, True, True),
        (_sync, True, False, False),
        (_Callable(), True, False, True),
        (functools.partial(_both, {}), False, True, True),
    ],
)
def test_handler_signature_selects_payload_context_and_thread(
    call: Callable[..., Any], decodes: bool, context: bool, is_async: bool
) -> None:
    """Functions that are not async run in threads."""
    handler = inspect_handler("q", call, OPTIONS)
    assert (handler.decode is not None, handler.takes_context, handler.is_async) == (
        decodes,
        context,
        is_async,
    )


async def _two(one: str, two: str) -> None: ...
async def _keyword(*, one: str) -> None: ...
async def _many(*many: str) -> None: ...
async def _undecodable(number: complex) -> None: ...
async def _unknown(order: NoSuchName) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("call", [_two, _keyword, _many, _undecodable, _unknown])
def test_unsupported_signature_is_refused_with_queue(call: Callable[..., Any]) -> None:
    with pytest.raises(InvalidDeclaration, match="handler of queue 'orders'"):
        inspect_handler("orders", call, OPTIONS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: HandlerOptions(concurrency=0),
        lambda: HandlerOptions(prefetch=0),
        lambda: HandlerOptions(prefetch=70_000),
        lambda: HandlerOptions(deadline=0),
        lambda: BatchOptions(size=0),
        lambda: BatchOptions(wait=-1),
        lambda: BatchOptions(batchers=0),
        lambda: BatchOptions(deadline=-1),
        lambda: BreakerPolicy(failures=0),
        lambda: BreakerPolicy(cool_down=-1),
        lambda: BreakerPolicy(probes=0),
        lambda: PushTarget("http://user:pw@host/"),
        lambda: PushTarget("ftp://host/"),
        lambda: PushTarget("http://host/", timeout=0),
    ],
)
def test_invalid_handler_options_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidDeclaration):
        make()


def test_prefetch_follows_concurrency() -> None:
    """It keeps every slot busy and is at most 65,535."""
    windows = [HandlerOptions(concurrency=n).window for n in (1, 10, 100, 60_000)]
    assert windows == [20, 20, 200, 65_535]
    assert HandlerOptions(concurrency=5, prefetch=7).window == 7
    assert BatchOptions(size=1000, batchers=2).window == 3000


async def test_queue_without_failure_plan_is_refused_by_name() -> None:
    app = App("shop")
    app.handler("orders")(_payload_only)
    app.handler("users", retry=["1s"])(_payload_only)
    with pytest.raises(InvalidDeclaration) as caught:
        Service(app, EmbeddedBroker())
    assert [problem.path for problem in caught.value.problems] == ["queues.orders"]


def test_second_handler_or_plan_of_queue_is_refused() -> None:
    app = App("shop")
    app.handler("orders", retry=["1s"])(_payload_only)
    with pytest.raises(InvalidDeclaration, match="one handler"):
        app.handler("orders")(_both)
    with pytest.raises(InvalidDeclaration, match="one failure plan"):
        app.queue("orders")
    designed = App("raffle", topology=DESIGNS["raffle"].build({}, hardened=False))
    queue = designed.topology.plans[0].queue
    with pytest.raises(InvalidDeclaration, match="one failure plan"):
        designed.queue(queue)


def test_queue_is_declared_with_recommended_design_and_bindings() -> None:
    """The default has three waits and a dead-letter queue."""
    app = App("shop")
    app.queue("orders", bind={"events": ["order.*", "cart.#"], "audit": "#"})
    topology = app.topology
    assert [queue.name for queue in topology.queues] == [
        "orders",
        "orders.retry.30s",
        "orders.retry.5m",
        "orders.retry.30m",
        "orders.dlq",
    ]
    assert [(one.source, one.routing_key) for one in topology.bindings] == [
        ("events", "order.*"),
        ("events", "cart.#"),
        ("audit", "#"),
    ]


async def test_unknown_queue_is_refused_with_known_ones() -> None:
    from hopback import ServiceOptions

    app = App("shop")
    app.handler("orders", retry=["1s"])(_payload_only)
    with pytest.raises(InvalidDeclaration, match="expected one of orders, got 'order'"):
        Service(app, EmbeddedBroker(), options=ServiceOptions(queues=["order"]))


def test_batch_handler_requires_async_function_of_list() -> None:
    app = App("shop")

    @app.batch("users", retry=["1s"], size=10, prepare=_both, processors=3, breaker=BreakerPolicy())
    async def insert(rows: list[int]) -> None: ...

    handler = app.handlers["users"]
    assert isinstance(handler, BatchHandler)
    assert isinstance(handler.prepare, Handler)
    assert handler.prepare.options.concurrency == 3
    with pytest.raises(InvalidDeclaration, match="batch handler of queue 'more'"):
        app.batch("more")(_two)
    with pytest.raises(InvalidDeclaration, match="batch handler of queue 'more'"):
        app.batch("more")(_sync)  # type: ignore[type-var]


# --- mistakes of the first five minutes


def test_decorator_without_parentheses_is_refused_with_remedy() -> None:
    """Otherwise it would not declare its queue, and `hopback run` would report readiness."""
    app = App("shop")
    for decorator in (app.handler, app.batch):
        with pytest.raises(InvalidDeclaration) as caught:
            decorator(_payload_only)  # type: ignore[arg-type, call-overload]
        assert f'`@app.{decorator.__name__}("_payload_only", retry=["30s", "5m"])`' in str(
            caught.value
        )
        assert "the function _payload_only (the parentheses are missing)" in str(caught.value)


async def _answers(order: str) -> int: ...  # type: ignore[empty-body]
async def _answers_or_parks(order: str) -> Park | dict[str, int]: ...  # type: ignore[empty-body]
def _makes_a_coroutine(order: str) -> Coroutine[Any, Any, None]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("call", [_answers, _answers_or_parks, _makes_a_coroutine])
def test_handler_annotated_with_value_is_refused(call: Callable[..., Any]) -> None:
    """Each of its messages would be handled and then parked."""
    with pytest.raises(InvalidDeclaration, match="return value: expected None, Done") as caught:
        inspect_handler("orders", call, OPTIONS)
    assert "context.publish" in str(caught.value)


async def _outcome(order: str) -> Outcome | None: ...
async def _park(order: str) -> Park: ...  # type: ignore[empty-body]
def _anything(order: str) -> Any: ...
def _never(order: str) -> NoReturn: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("call", [_outcome, _park, _anything, _never])
def test_handler_may_be_annotated_with_outcomes(call: Callable[..., Any]) -> None:
    assert inspect_handler("orders", call, OPTIONS).call is call


def test_prepare_may_return_any_row() -> None:
    app = App("shop")
    app.batch("users", retry=["1s"], prepare=_answers)(_rows)
    assert "users" in app.handlers


async def _rows(rows: list[int]) -> None: ...


@pytest.mark.parametrize(
    ("retry", "told"),
    [
        ("30s", "retry: expected a list of waits, as in `retry=['30s']`, got '30s'"),
        (
            30,
            "retry: expected a list of waits, as in `retry=['30s', '5m']` (`attempts=` is the number"
            " of runs), got 30",
        ),
        (["30s", "5 minutes"], "retry[1]: expected a duration like 250ms"),
        (["30"], "(add a unit, as in 30s)"),
        ([True], "seconds or a timedelta, got True"),
        ([1e300], "ten years"),
    ],
)
def test_invalid_retry_wait_is_refused_with_position(retry: Any, told: str) -> None:
    with pytest.raises(InvalidDeclaration, match="queue 'orders': retry") as caught:
        App("shop").handler("orders", retry=retry)
    assert told in str(caught.value)


def test_batch_wait_must_be_a_duration() -> None:
    with pytest.raises(InvalidDeclaration, match="wait: expected a duration like 250ms"):
        App("shop").batch("users", wait="soon")


def test_type_checker_reports_mistakes_refused_at_import() -> None:
    """mypy would report a comment as unused if it accepted the line."""
    app = App("shop")

    with pytest.raises(InvalidDeclaration, match="annotate the handler `-> None`"):

        @app.handler("numbers", retry=["1s"])  # type: ignore[type-var]
        async def number(order: str) -> int:
            return 3

    with pytest.raises(InvalidDeclaration, match="retry"):

        @app.handler("orders", retry="30s")  # type: ignore[call-overload, untyped-decorator]
        async def order(order: str) -> None: ...

    async def forgets(order: str, context: Context) -> None:
        context.publish("orders", order)  # type: ignore[unused-coroutine]

    async def keeps_its_signature(order: str, context: Context) -> None: ...

    kept = app.handler("kept", retry=["1s"])(keeps_its_signature)
    with pytest.raises(TypeError):
        kept(5)  # type: ignore[arg-type, call-arg, unused-coroutine]
