"""The pytest plugin.

It provides fixtures that run a broker on a local port and connect applications to it. Pytest
enables the plugin automatically. Modules are only imported when a fixture is used.
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
    """The type of the `hopback_app` fixture."""

    def __call__(self, app: App, *, overrides: Overrides | None = None) -> AppThread:
        """Run the application in a thread until the test ends."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(clock='virtual', version='4.0'): how the fixture {_MARKER} is set up",
    )


@pytest.fixture
def hopback_broker(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    """Start a broker on a free local port. Its time only changes when `advance` is called."""
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
    """Run applications connected to `hopback_broker` until the test ends.

    Usage: `running = hopback_app(app)`. Use `overrides` to replace dependencies, for example
    `{open_database: FakeDatabase}`.
    """
    from hopback.testing.threads import AppThread

    with ExitStack() as running:

        def start(app: App, *, overrides: Overrides | None = None) -> AppThread:
            return running.enter_context(AppThread(app, hopback_broker.url, overrides=overrides))

        yield start
