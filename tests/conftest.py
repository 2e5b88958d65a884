"""Fixtures for every test that talks to a real RabbitMQ or PostgreSQL."""

from __future__ import annotations

import gc
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.conformance.table import ConformanceTable
from tests.harness.lanes import Lanes, hand_on_waits
from tests.harness.rabbitmq import RabbitNode
from tests.harness.shared import (
    SharedNode,
    SharedPostgres,
    begin_run,
    end_run,
    shared_node,
    shared_postgres,
)
from tests.harness.signals import set_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Nothing is judged by how long it takes: the machine may be busy with something else.
settings.register_profile("whole", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# While one works: fewer examples of what has no number of its own. `make test` plays them all.
settings.register_profile("quick", settings.get_profile("whole"), max_examples=10)
settings.load_profile("whole")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the test run."""
    parser.addoption(
        "--all-brokers",
        action="store_true",
        help="conformance also on RabbitMQ 4.0 and 4.3, and write the table of results",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes | None:
    """Tests that wait run beside tests that compute."""
    return Lanes(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays to the end: the garbage collector need not go through it.

    It would, again and again, while seven thousand tests are collected and while they run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `--all-brokers` the tests that need other RabbitMQ versions are not of the run."""
    hand_on_waits(items)
    if config.getoption("--all-brokers"):
        return
    unwanted = [item for item in items if item.get_closest_marker("all_brokers")]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if not item.get_closest_marker("all_brokers")]


def pytest_configure(config: pytest.Config) -> None:
    """Every process of the run sets its signals; the main one holds the lifeline of the run's servers."""
    set_signals()
    config.addinivalue_line("markers", "all_brokers: needs the RabbitMQ versions of --all-brokers")
    if not hasattr(config, "workerinput"):
        begin_run()
        _see_that_groups_hold(config)
        if config.getoption("--all-brokers"):
            config.pluginmanager.register(ConformanceTable())


def _see_that_groups_hold(config: pytest.Config) -> None:
    """Torn apart, tests that share a node start one each: minutes are lost, and nothing says so."""
    if config.getoption("dist", "no") == "loadgroup" and pytest.version_tuple >= (9, 2):
        raise pytest.UsageError(
            f"expected pytest below 9.2, where pytest-xdist 3.8 keeps groups together, got"
            f" {pytest.__version__}; install what tools/pins/dev.txt says"
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    """The run's servers end with the run."""
    if not hasattr(config, "workerinput"):
        end_run()


@pytest.fixture(scope="module", autouse=True)
def _left_open() -> Iterator[None]:
    """What the tests of a module leave open is told in that module, not in whichever test comes by later.

    What is still alive then is mostly what was imported: frozen, it is not gone through after every module.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def rabbitmq() -> SharedNode:
    """The run's RabbitMQ node, shared by all tests and all workers: never stop it."""
    return shared_node()


@pytest.fixture(scope="session")
def postgres() -> SharedPostgres:
    """The run's PostgreSQL, shared by all tests and all workers: never stop it."""
    return shared_postgres()


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
