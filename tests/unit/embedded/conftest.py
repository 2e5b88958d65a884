"""Every asynchronous test here runs in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.broker.embedded import VirtualTimeLoop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    import pytest


def pytest_asyncio_loop_factories(
    config: pytest.Config,
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of these tests."""
    return {"virtual": VirtualTimeLoop}
