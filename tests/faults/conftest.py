"""A node of the fault tests' own: it is stopped and killed at will."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.configuration import QUICK_DEAD_LETTERS_MS, Timings
from tests.harness.rabbitmq import RabbitNode

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitNode]:
    """A private node for the tests of one module.

    It retries held-back dead letters soon. The long run uses RabbitMQ's default of 180 s, which
    would stall these tests.
    """
    with RabbitNode(timings=Timings(dead_letter_retry_ms=QUICK_DEAD_LETTERS_MS)) as started:
        yield started
