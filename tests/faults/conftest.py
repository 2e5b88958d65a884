"""A node that the fault tests can stop and kill."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.configuration import QUICK_DEAD_LETTERS_MS, Timings
from tests.harness.rabbitmq import RabbitNode

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitNode]:
    """Start a node for the tests of a module.

    It retries dead letters that are held back after a short time. In the long run, this takes
    RabbitMQ's default of 180 s, which is too long here.
    """
    with RabbitNode(timings=Timings(dead_letter_retry_ms=QUICK_DEAD_LETTERS_MS)) as started:
        yield started
