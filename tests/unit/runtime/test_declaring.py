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
def test_a_handlers_signature_says_what_it_is_given(
    call: Callable[..., Any], decodes: bool, context: bool, is_async: bool
) -> None:
    """A payload, a context, both or neither; coroutine functions are awaited, others run in threads."""
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
def test_a_signature_that_cannot_be_served_is_refused(call: Callable[..., Any]) -> None:
    """The error names the queue, so that the developer finds the handler."""
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
def test_options_have_limits(make: Callable[[], object]) -> None:
    """An option that would make a queue stand still, or leak a password, is refused at once."""
    with pytest.raises(InvalidDeclaration):
        make()


def test_the_prefetch_follows_the_concurrency() -> None:
    """Enough to keep every slot busy, never more than AMQP can say."""
    windows = [HandlerOptions(concurrency=n).window for n in (1, 10, 100, 60_000)]
    assert windows == [20, 20, 200, 65_535]
    assert HandlerOptions(concurrency=5, prefetch=7).window == 7
    assert BatchOptions(size=1000, batchers=2).window == 3000


async def test_a_queue_without_failure_plan_is_refused_naming_it() -> None:
    """Silence about failure is an error before anything is consumed."""
    app = App("shop")
    app.handler("orders")(_payload_only)
    app.handler("users", retry=["1s"])(_payload_only)
    with pytest.raises(InvalidDeclaration) as caught:
        Service(app, EmbeddedBroker())
    assert [problem.path for problem in caught.value.problems] == ["queues.orders"]


def test_a_queue_has_one_handler_and_one_plan() -> None:
    """A second handler would give a message two outcomes, a second plan two fates."""
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


def test_queues_are_declared_with_what_feeds_them() -> None:
    """The recommended design by default: three waits, a dead-letter queue, bindings as asked."""
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


async def test_only_queues_that_exist_can_be_chosen() -> None:
    """A misspelled queue is told with the ones there are."""
    from hopback import ServiceOptions

    app = App("shop")
    app.handler("orders", retry=["1s"])(_payload_only)
    with pytest.raises(InvalidDeclaration, match="expected one of orders, got 'order'"):
        Service(app, EmbeddedBroker(), options=ServiceOptions(queues=["order"]))


def test_batch_handlers_take_one_list() -> None:
    """A batch handler is an async function of a list; a prepare step is a handler of one message."""
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


def test_a_decorator_without_parentheses_is_refused_with_the_line_to_write() -> None:
    """`@app.handler` alone would declare nothing, and `hopback run` would say that it is ready."""
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
def test_a_handler_that_returns_a_value_is_refused(call: Callable[..., Any]) -> None:
    """Each of its messages would be handled and then parked."""
    with pytest.raises(InvalidDeclaration, match="return value: expected None, Done") as caught:
        inspect_handler("orders", call, OPTIONS)
    assert "context.publish" in str(caught.value)


async def _outcome(order: str) -> Outcome | None: ...
async def _park(order: str) -> Park: ...  # type: ignore[empty-body]
def _anything(order: str) -> Any: ...
def _never(order: str) -> NoReturn: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("call", [_outcome, _park, _anything, _never])
def test_a_handler_may_be_annotated_with_what_it_may_return(call: Callable[..., Any]) -> None:
    """An outcome, several of them, nothing, or no promise at all."""
    assert inspect_handler("orders", call, OPTIONS).call is call


def test_a_prepare_step_returns_a_row() -> None:
    """Only what settles a message has to be an outcome."""
    app = App("shop")
    app.batch("users", retry=["1s"], prepare=_answers)(_rows)
    assert "users" in app.handlers


async def _rows(rows: list[int]) -> None: ...


@pytest.mark.parametrize(
    ("retry", "told"),
    [
        ("30s", "retry: expected a list of waits, as in `retry=['30s']`, got '30s'"),
        (30, "retry: expected a list of waits, as in `retry=[30]`, got 30"),
        (["30s", "5 minutes"], "retry[1]: expected a duration like 250ms"),
        (["30"], "(add a unit, as in 30s)"),
        ([True], "seconds or a timedelta, got True"),
        ([1e300], "ten years"),
    ],
)
def test_waits_that_are_none_are_refused_by_their_place(retry: Any, told: str) -> None:
    """The queue, the option and the number of the wait; what is expected, and what was found."""
    with pytest.raises(InvalidDeclaration, match="queue 'orders': retry") as caught:
        App("shop").handler("orders", retry=retry)
    assert told in str(caught.value)


def test_the_wait_of_a_batch_is_a_duration() -> None:
    """As everywhere."""
    with pytest.raises(InvalidDeclaration, match="wait: expected a duration like 250ms"):
        App("shop").batch("users", wait="soon")


def test_type_checkers_refuse_what_is_refused_at_import() -> None:
    """Each comment is an error that mypy reports, or it would call the comment unused; so it stays."""
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
