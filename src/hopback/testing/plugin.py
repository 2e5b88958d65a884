"""The pytest plugin: a broker on a socket for each test, and applications that run on it.

It is part of the package and needs no configuration. Modules are imported when a fixture is used.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.runtime.app import App
    from hopback.runtime.dependencies import Overrides
    from hopback.testing.threads import AppThread, BrokerThread

_MARKER = "hopback_broker"


class StartsApp(Protocol):
    """Type of the fixture `hopback_app`: starts applications."""

    def __call__(self, app: App, *, overrides: Overrides | None = None) -> AppThread:
        """Run it beside the test, on the test's broker, until the test ends."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(clock='virtual', version='4.0'): how the fixture {_MARKER} is set up",
    )


@pytest.fixture
def hopback_broker(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    """A fresh broker on a free local port. Its clock moves only by `advance`."""
    from hopback.broker.server import ClockKind, ServerSettings
    from hopback.testing.threads import BrokerThread
    from hopback.version import BrokerVersion

    marker = request.node.get_closest_marker(_MARKER)
    options = {} if marker is None else dict(marker.kwargs)
    settings = ServerSettings(
        port=0,
        http_port=0,
        clock=ClockKind(options.pop("clock", "virtual")),
        version=BrokerVersion.parse(options.pop("version", "4.0")),
    )
    if options:
        raise pytest.UsageError(
            f"@pytest.mark.{_MARKER}: expected clock and version, got {', '.join(options)}"
        )
    with BrokerThread(settings) as broker:
        yield broker


@pytest.fixture
def hopback_app(hopback_broker: BrokerThread) -> Iterator[StartsApp]:
    """Run an application on `hopback_broker` until the test ends: `running = hopback_app(app)`.

    `overrides` replaces providers by others: `{open_database: FakeDatabase}`.
    """
    from hopback.testing.threads import AppThread

    with ExitStack() as running:

        def start(app: App, *, overrides: Overrides | None = None) -> AppThread:
            return running.enter_context(AppThread(app, hopback_broker.url, overrides=overrides))

        yield start
