"""A node of the fault tests' own: it is stopped and killed at will."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.rabbitmq import RabbitNode

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitNode]:
    """A private node for the tests of one module."""
    with RabbitNode() as started:
        yield started
