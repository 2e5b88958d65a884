"""Applications in a thread: their errors reach the test."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from hopback import App, SyncPublisher
from hopback.testing import AppThread, BrokerThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.socket


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a broker for all tests of this module."""
    with BrokerThread() as broker:
        yield broker.url


def _failing_app() -> App:
    """An application that fails when it stops."""

    @asynccontextmanager
    async def lifespan(_app: App) -> AsyncIterator[None]:
        yield
        raise OSError("cannot flush")

    return App("shop", lifespan=lifespan)


def test_error_of_application_is_raised_at_end_of_block(url: str) -> None:
    with pytest.raises(OSError, match="cannot flush"), AppThread(_failing_app(), url):
        pass


def test_error_of_application_is_raised_once(url: str) -> None:
    """An event that it did not emit before is not awaited."""
    with AppThread(_failing_app(), url) as running:
        with pytest.raises(OSError, match="cannot flush"):
            running.stop()
        with pytest.raises(TimeoutError, match=r"1 delivery.done .* before the application ended"):
            running.wait_for("delivery.done")
        assert running.wait_for("connection.state", state="ready", times=2)


def test_error_of_test_is_not_replaced(url: str) -> None:
    with pytest.raises(LookupError), AppThread(_failing_app(), url):
        raise LookupError("no such order")


def test_wait_for_raises_error_of_application(url: str) -> None:
    """It does not wait for an event that cannot occur any more."""
    app = App("shop")

    @app.handler("orders", retry=["1s"])
    async def handle() -> None:
        raise KeyboardInterrupt

    with AppThread(app, url) as running, SyncPublisher(url) as publisher:
        publisher.publish("orders", {})
        with pytest.raises(KeyboardInterrupt):
            running.wait_for("delivery.done")
