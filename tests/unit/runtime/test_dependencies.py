"""Dependencies of handlers: opened, shared, closed and overridden."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from hopback import App, Context, Depends
from hopback.errors import InvalidDeclaration
from hopback.testing import AppTest, Tally, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

DIARY: list[str] = []


class Database:
    """A resource with the lifetime of the application."""


class Session:
    """A resource with the lifetime of a run."""

    def __init__(self, database: Database) -> None:
        self.database = database


async def open_database() -> AsyncIterator[Database]:
    DIARY.append("database opened")
    yield Database()
    DIARY.append("database closed")


Db = Annotated[Database, Depends(open_database, scope="application")]


async def open_session(database: Db) -> AsyncIterator[Session]:
    DIARY.append("session opened")
    try:
        yield Session(database)
    except ValueError as error:
        DIARY.append(f"session rolled back: {error}")
        raise
    else:
        DIARY.append("session committed")


def open_lock(context: Context) -> Iterator[str]:
    DIARY.append("locked")
    yield f"lock of {context.message_id}"
    DIARY.append("unlocked")


def who(lock: Annotated[str, Depends(open_lock)]) -> str:
    return f"who has the {lock}"


async def catch_failure() -> AsyncIterator[int]:
    with suppress(ValueError):
        yield 1


async def cannot_close() -> AsyncIterator[int]:
    yield 1
    raise ConnectionError("not closed")


async def open_connection() -> AsyncIterator[str]:
    DIARY.append("connection taken")
    try:
        yield "connection"
    finally:
        DIARY.append("connection given back")


async def cannot_roll_back(
    connection: Annotated[str, Depends(open_connection)],
) -> AsyncIterator[int]:
    try:
        yield 1
    finally:
        raise ConnectionError("not rolled back")


def cannot_open(lock: Annotated[str, Depends(open_lock)]) -> int:
    raise ConnectionError("no connection")


async def greet(suffix: str = "!") -> str:
    return "hello" + suffix


InTransaction = Annotated[Session, Depends(open_session, scope="run")]


@pytest.fixture(autouse=True)
def _fresh_diary() -> None:
    DIARY.clear()


def _app(*, fails: bool = False) -> App:
    app = App("shop")

    @app.handler("orders", retry=None)
    async def handle(
        session: InTransaction,
        order: dict[str, Any],
        database: Db,
        *,
        text: Annotated[str, Depends(greet)],
        one: Annotated[str, Depends(who)],
        lock: Annotated[str, Depends(open_lock)],
        context: Context,
    ) -> None:
        assert session.database is database
        DIARY.append(f"handled {order['id']} {text} {one}, {lock}, {context.attempt}")
        if fails:
            raise ValueError("no")

    return app


@in_virtual_time
async def test_dependencies_open_once_and_close_around_settlement() -> None:
    """Scope `run` closes before the settlement, scope `delivery` after it, scope `application` at
    the end.
    """
    async with AppTest(_app()) as test:
        test.service.environment.bus.subscribe(lambda name, _: DIARY.append(name))
        await test.publish("orders", {"id": 7}, message_id="m1")
        assert await test.drain() == Tally(done=1)
    happened = [line for line in DIARY if not line.startswith(("connection", "consumer", "shut"))]
    assert happened == [
        "database opened",
        "session opened",
        "locked",
        "handled 7 hello! who has the lock of m1, lock of m1, 1",
        "session committed",
        "delivery.done",
        "unlocked",
        "database closed",
    ]


@in_virtual_time
async def test_providers_see_failure_of_handler() -> None:
    """A transaction is rolled back. Dependencies closed after the settlement see it as well."""
    async with AppTest(_app(fails=True)) as test:
        await test.publish("orders", {"id": 7})
        assert await test.drain() == Tally(parked=1)
    assert "session rolled back: no" in DIARY
    assert "session committed" not in DIARY
    assert "unlocked" not in DIARY  # its generator does not handle the failure


@in_virtual_time
async def test_failed_commit_fails_run() -> None:
    """Scope `run` is closed before the settlement."""
    app = App("shop")

    @app.handler("orders", retry=["1s"])
    async def handle(number: Annotated[int, Depends(cannot_close, scope="run")]) -> None: ...

    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.drain()
        test.assert_retried("orders", reason="not closed", times=1)
        test.assert_parked("orders", reason="not closed", times=1)


@in_virtual_time
async def test_provider_that_catches_the_failure_does_not_make_the_run_successful() -> None:
    app = App("shop")

    @app.handler("orders", retry=None)
    async def handle(number: Annotated[int, Depends(catch_failure, scope="run")]) -> None:
        raise ValueError("no stock")

    @app.batch("users", retry=None, size=1)
    async def insert(
        rows: list[int], number: Annotated[int, Depends(catch_failure, scope="run")]
    ) -> None:
        raise ValueError("no table")

    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.publish("users", 1)
        assert await test.drain() == Tally(parked=2)
        test.assert_parked("orders", reason="no stock")
        test.assert_parked("users", reason="no table")


@in_virtual_time
async def test_close_error_after_settlement_is_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("shop")

    @app.handler("orders", retry=["1s"])
    async def handle(number: Annotated[int, Depends(cannot_close)]) -> None: ...

    async with AppTest(app) as test:
        await test.publish("orders", {})
        assert await test.drain() == Tally(done=1)
    assert "could not be closed after its delivery was settled" in caplog.text


@in_virtual_time
async def test_provider_that_raises_fails_run_and_closes_others() -> None:
    app = App("shop")

    @app.handler("orders", retry=None)
    async def handle(number: Annotated[int, Depends(cannot_open)]) -> None: ...

    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.drain()
        test.assert_parked("orders", reason="no connection")
    assert DIARY == ["locked"]


@in_virtual_time
async def test_failed_cleanup_of_a_run_does_not_leave_dependencies_open() -> None:
    """A later provider raises, and the cleanup of the run raises as well."""
    app = App("shop")

    @app.handler("orders", retry=["1s"], attempts=3)
    async def handle(
        number: Annotated[int, Depends(cannot_roll_back, scope="run")],
        other: Annotated[int, Depends(cannot_open, scope="run")],
    ) -> None: ...

    async with AppTest(app) as test:
        await test.publish("orders", {})
        assert await test.drain() == Tally(retried=2, parked=1)
        test.assert_parked("orders", reason="not rolled back")
    connections = [line for line in DIARY if line.startswith("connection ")]
    assert connections == ["connection taken", "connection given back"] * 3


@in_virtual_time
async def test_sync_handlers_and_batches_have_dependencies() -> None:
    """They are opened on the event loop. A batch opens them for each call."""
    app = App("shop")
    seen: list[object] = []

    @app.handler("orders", retry=None)
    def handle(order: dict[str, Any], session: InTransaction) -> None:
        seen.append((order, type(session)))

    async def prepare(user: int, text: Annotated[str, Depends(greet)]) -> str:
        return f"{text} {user}"

    @app.batch("users", size=2, prepare=prepare, retry=None)
    async def insert(
        rows: list[str],
        session: InTransaction,
        text: Annotated[str, Depends(greet)],
    ) -> None:
        seen.append((rows, text))

    async with AppTest(app) as test:
        await test.publish("orders", {})
        await test.drain()
        await test.publish("users", 1)
        await test.publish("users", 2)
        await test.drain()
    assert seen == [({}, Session), (["hello! 1", "hello! 2"], "hello!")]
    assert DIARY.count("session opened") == DIARY.count("session committed") == 2
    assert DIARY.count("database opened") == DIARY.count("database closed") == 1


@in_virtual_time
async def test_override_replaces_provider_in_tests() -> None:
    """The replaced provider is not called. It is restored afterwards."""
    app = _app()
    other = Database()

    def fake_database() -> Database:
        return other

    def fake_session(database: Db) -> Session:
        assert database is other
        DIARY.append("fake session")
        return Session(database)

    with app.override(open_session, fake_session):
        async with AppTest(app, overrides={open_database: fake_database}) as test:
            await test.publish("orders", {"id": 1})
            assert await test.drain() == Tally(done=1)
    assert "fake session" in DIARY
    assert "database opened" not in DIARY
    assert app.overrides == {}


@in_virtual_time
async def test_several_overrides_may_be_given_as_a_dict() -> None:
    app = _app()
    other = Database()
    with app.override({open_session: lambda: Session(other), open_database: lambda: other}):
        async with AppTest(app) as test:
            await test.publish("orders", {"id": 1})
            assert await test.drain() == Tally(done=1)
    assert "database opened" not in DIARY
    assert app.overrides == {}


@in_virtual_time
async def test_override_of_an_unused_provider_is_refused() -> None:
    """The error lists the providers of handlers, batches and the lifespan, and their own ones."""
    app = _app()
    expected = (
        r"app 'shop': override: expected a provider of this application \(greet, open_database,"
        rf" open_lock, open_session, who\), got {__name__}\._short_lived$"
    )
    with pytest.raises(InvalidDeclaration, match=expected):
        async with AppTest(app, overrides={_short_lived: open_database}):
            raise AssertionError("expected no start")
    with pytest.raises(InvalidDeclaration, match="expected a provider"), app.override(print, input):
        raise AssertionError("expected no override")
    assert app.overrides == {}


def test_override_without_a_function_is_refused() -> None:
    app = _app()
    wrong: Any = Database()
    expected = "override: expected a function that replaces open_database, got <"
    with pytest.raises(InvalidDeclaration, match=expected), app.override({open_database: wrong}):
        raise AssertionError("expected no override")
    expected = "override: expected a provider and its replacement, or a dict of them, got <function"
    single: Any = open_database
    with pytest.raises(InvalidDeclaration, match=expected), app.override(single):
        raise AssertionError("expected no override")


async def _needs_itself(one: Annotated[int, Depends(lambda: 1)], two: int) -> int:
    return one + two


async def _short_lived() -> int:
    return 1


async def _long_lived(one: Annotated[int, Depends(_short_lived)]) -> int:
    return one


async def _settled(one: Annotated[int, Depends(_short_lived, scope="run")]) -> int:
    return one


async def _of_a_delivery(context: Context) -> int:
    return context.attempt


def _handler_with(depends: Depends) -> Any:
    async def handle(payload: bytes, one: int) -> None: ...

    handle.__annotations__["one"] = Annotated[int, depends]
    return handle


@pytest.mark.parametrize(
    ("depends", "told"),
    [
        (Depends(_needs_itself), "two: expected a provider"),
        (
            Depends(_long_lived, scope="application"),
            "_long_lived: expected only providers of scope application, because its value is shared"
            " by all runs, got _short_lived, which is made for each delivery. Give _long_lived"
            " scope='delivery', or _short_lived scope='application'",
        ),
        (
            Depends(_settled),
            "_settled: expected no provider of scope run, because its value is used until the"
            " settlement, got _short_lived, which is closed before the settlement. Give _settled"
            " scope='run', or _short_lived scope='delivery'",
        ),
        (
            Depends(_of_a_delivery, scope="application"),
            "before any delivery, got one. Give it scope='run'",
        ),
    ],
)
def test_invalid_dependency_is_refused_at_declaration(depends: Depends, told: str) -> None:
    """The error names the queue and the provider."""
    with pytest.raises(InvalidDeclaration, match=told) as caught:
        App("shop").handler("orders", retry=None)(_handler_with(depends))
    assert "queue 'orders'" in str(caught.value)


def test_invalid_depends_marker_is_refused() -> None:
    """Examples are a value instead of a function, an unknown scope and a default instead of an
    annotation.
    """
    with pytest.raises(InvalidDeclaration, match="a function, not its result"):
        Depends(5)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidDeclaration,
        match=r"Depends\(open_session\): scope: expected run, delivery, application, got 'request'"
        r" \(did you mean delivery\?\)",
    ):
        Depends(open_session, scope="request")
    with pytest.raises(InvalidDeclaration, match=r"did you mean application\?"):
        Depends(open_session, scope="aplication")
    with pytest.raises(InvalidDeclaration, match=r"Annotated\[…, Depends\(greet\)\]"):

        @App("shop").handler("orders", retry=None)
        async def handle(payload: bytes, text: Any = Depends(greet)) -> None: ...  # noqa: B008

    with pytest.raises(InvalidDeclaration, match="made for several deliveries"):

        @App("shop").batch("orders", retry=None)
        async def insert(rows: list[int], one: Annotated[int, Depends(_of_a_delivery)]) -> None: ...
