"""Fixtures for every test that talks to a real RabbitMQ."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.rabbitmq import RabbitNode
from tests.harness.shared import SharedNode, begin_run, end_run, shared_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def pytest_configure(config: pytest.Config) -> None:
    """The run's main process holds the lifeline of the run's node."""
    if not hasattr(config, "workerinput"):
        begin_run()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The run's node ends with the run."""
    if not hasattr(config, "workerinput"):
        end_run()


@pytest.fixture(scope="session")
def rabbitmq() -> SharedNode:
    """The run's RabbitMQ node, shared by all tests and all workers: never stop it."""
    return shared_node()


@pytest.fixture
def vhost(rabbitmq: SharedNode) -> Iterator[str]:
    """A virtual host of the shared node for this test alone; its name."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    rabbitmq.management.create_vhost(name)
    yield name
    rabbitmq.management.delete_vhost(name)


@pytest.fixture
def amqp_url(rabbitmq: SharedNode, vhost: str) -> str:
    """The AMQP address of this test's own virtual host on the shared node."""
    return rabbitmq.url + vhost


@pytest.fixture
def start_rabbitmq() -> Iterator[Callable[..., RabbitNode]]:
    """Starts further private nodes, to be stopped and killed at will; all gone after the test."""
    with ExitStack() as nodes:

        def start(**settings: Any) -> RabbitNode:
            return nodes.enter_context(RabbitNode(**settings))

        yield start
