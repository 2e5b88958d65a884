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


# No time limits for examples, because the machine may be busy.
settings.register_profile("whole", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For quick runs: fewer examples in tests without an explicit number. `make test` runs all of them.
settings.register_profile("quick", settings.get_profile("whole"), max_examples=10)
settings.load_profile("whole")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-brokers",
        action="store_true",
        help="conformance also on RabbitMQ 4.0 and 4.3, and write the table of results",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes | None:
    """Run waiting tests in parallel with computing ones."""
    return Lanes(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze the objects of the collection, which live until the end of the run.

    Otherwise the garbage collector traverses them repeatedly during collection and tests.
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
    """Deselect tests of other RabbitMQ versions without `--all-brokers`."""
    hand_on_waits(items)
    if config.getoption("--all-brokers"):
        return
    excluded = [item for item in items if item.get_closest_marker("all_brokers")]
    config.hook.pytest_deselected(items=excluded)
    items[:] = [item for item in items if not item.get_closest_marker("all_brokers")]


def pytest_configure(config: pytest.Config) -> None:
    """Set the signals of every process. The main process keeps the servers of the run alive."""
    set_signals()
    config.addinivalue_line("markers", "all_brokers: needs the RabbitMQ versions of --all-brokers")
    if not hasattr(config, "workerinput"):
        begin_run()
        _check_groups(config)
        if config.getoption("--all-brokers"):
            config.pluginmanager.register(ConformanceTable())


def _check_groups(config: pytest.Config) -> None:
    """Refuse pytest versions that split groups: tests of one group would each start a node."""
    if config.getoption("dist", "no") == "loadgroup" and pytest.version_tuple >= (9, 2):
        raise pytest.UsageError(
            f"expected pytest below 9.2, where pytest-xdist 3.8 keeps groups together, got"
            f" {pytest.__version__}; install the versions of tools/pins/dev.txt"
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers of the run."""
    if not hasattr(config, "workerinput"):
        end_run()


@pytest.fixture(scope="module", autouse=True)
def _collect_garbage() -> Iterator[None]:
    """Report unclosed resources in the module of their test.

    Frozen objects, mostly of imported modules, are not traversed again.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def rabbitmq() -> SharedNode:
    """The RabbitMQ node shared by all tests and workers. Never stop it."""
    return shared_node()


@pytest.fixture(scope="session")
def postgres() -> SharedPostgres:
    """The PostgreSQL shared by all tests and workers. Never stop it."""
    return shared_postgres()


@pytest.fixture
def vhost(rabbitmq: SharedNode) -> Iterator[str]:
    """The name of a virtual host of the shared node, for this test alone."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    rabbitmq.management.create_vhost(name)
    yield name
    rabbitmq.management.delete_vhost(name)


@pytest.fixture
def amqp_url(rabbitmq: SharedNode, vhost: str) -> str:
    """The AMQP URL of the test's virtual host on the shared node."""
    return rabbitmq.url + vhost


@pytest.fixture
def start_rabbitmq() -> Iterator[Callable[..., RabbitNode]]:
    """A function that starts private nodes, which tests may stop and kill. Removed after the test."""
    with ExitStack() as nodes:

        def start(**settings: Any) -> RabbitNode:
            return nodes.enter_context(RabbitNode(**settings))

        yield start
