"""The suites, their requirements and excluded tests, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BY_HAND", "REQUIREMENTS", "SUITES", "TEST_SECONDS", "WITHOUT_TESTS", "Suite"]

TEST_SECONDS = 90
"""Limit for one test. The longest of them take a minute."""

_NO_TLS = "no TLS on either side"
_MAIN_URL = "amqp://guest:guest@127.0.0.1:5672/%2F"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Tests in the source package of another project."""

    package: str
    """Name and version in the registry, also installed."""
    paths: tuple[str, ...]
    """Paths in the source package."""
    arguments: tuple[str, ...] = ()
    """Arguments for pytest."""
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: int = 300
    """Limit for the whole suite. Tests that did not run by then count as not run."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Reasons by a part of the names of excluded tests."""

    @property
    def name(self) -> str:
        """Return the package name without the version."""
        return self.package.partition("==")[0]


SUITES: tuple[Suite, ...] = (
    Suite(
        package="aio-pika==10.2.1",
        paths=("tests",),
        left_out={
            "test_amqps": _NO_TLS,
            "test_robust_recovery": "stops and starts a broker in a container",
        },
        seconds=600,
    ),
    Suite(
        package="aiormq==7.2.4",
        paths=("tests",),
        left_out={"amqps": _NO_TLS, "ssl": _NO_TLS},
        seconds=600,
    ),
    Suite(
        package="amqp==5.4.2",
        paths=("t/integration/test_rmq.py",),
        left_out={"[tls": _NO_TLS},
    ),
    Suite(package="kombu==5.7.0", paths=("t/integration/test_py_amqp.py",)),
    Suite(
        package="celery==5.7.0",
        paths=("t/integration/test_tasks.py", "t/integration/test_inspect.py"),
        # Celery's default is Redis, which is not compared here.
        environment={
            "TEST_BROKER": "pyamqp://guest:guest@127.0.0.1//",
            "TEST_BACKEND": "rpc://guest:guest@127.0.0.1//",
        },
        seconds=420,
    ),
    Suite(
        package="amqpstorm==3.1.4",
        paths=("amqpstorm/tests/functional",),
        # The package has no configuration. pytest must not use one of a parent folder.
        arguments=("-c", "/dev/null", "--rootdir=."),
        # Without these the tests call a host of their author.
        environment={
            "AMQP_HOST": "127.0.0.1",
            "AMQP_USERNAME": "guest",
            "AMQP_PASSWORD": "guest",
            "AMQP_URI": _MAIN_URL,
            "AMQP_HTTP_URL": "http://127.0.0.1:15672",
        },
        left_out={"/ssl/": _NO_TLS, "test_web_based": _NO_TLS},
    ),
)
"""All suites in source packages of the registry."""

WITHOUT_TESTS: Mapping[str, str] = {
    "dramatiq": "its source package has the tests without the modules that they import",
    "pika": "its source package has no tests",
    "faststream": "its source package has no tests",
}
"""Source packages without usable tests."""

BY_HAND: Mapping[str, str] = {
    "amqp091-go (Go 1.19, its repository as of 20 August 2026)": (
        "all 246 tests of `go test -tags integration` pass on hopback broker in its three profiles, including"
        " recovery. On RabbitMQ 3.10.8, whose list of connections is seconds late, the"
        " recovery tests pass when run alone, and the whole suite did not end within four minutes. One"
        " test that needs `rabbitmqctl` is skipped"
    ),
    "amqplib (node, f7503e57, 2.0.1)": (
        "318 of 319 tests pass on RabbitMQ 3.10.8, 4.0.5 and 4.3.6, and on hopback broker in its three"
        " profiles. The other one connects to `[::1]`, where neither listens here"
    ),
    "rascal (node, 21.0.1)": (
        "376 of 376 tests pass on RabbitMQ 3.10.8 and 4.0.5, 375 on hopback broker 3.10 and 4.0:"
        " one test expects that declaring 300 objects concurrently takes half the time, and here"
        " each takes 0.3 ms. In 4.3, 372 pass on RabbitMQ and 373 on hopback broker, because a"
        " later prefetch does not affect a consumer of both. From 4.0 on, bodies of 20 MB were"
        " reduced to 15 MB"
    ),
    "bunny (Ruby, 2.19.0)": (
        "251 of 252 examples pass on RabbitMQ 3.10.8 and 250 on hopback broker 3.10, 249 on"
        " RabbitMQ 4.3.6 and 248 on hopback broker 4.3. One example uses only mocks, and two send"
        " more than 16 MiB. In the other one two threads of the example use the same channel, and"
        " in 4.3 hopback broker required the configure permission for a passive declare (repaired"
        " since). TLS, Toxiproxy and stress were excluded"
    ),
    "php-amqplib (3.5.3)": (
        "824 of 825 tests pass on RabbitMQ 3.10.8 and 4.3.6 and on hopback broker 4.3, and the last"
        " one, which needs HTTPS, is skipped. On hopback broker 3.10 a test of heartbeats failed"
        " once under load and passed in five other runs. TLS and Toxiproxy were excluded"
    ),
}
"""Suites outside the Python registry, with their results."""

REQUIREMENTS = (
    "aiomisc-pytest",
    "freezegun",
    "hypothesis",
    "pydantic",
    "pytest",
    "pytest-celery",
    "pytest-order",
    "pytest-rerunfailures",
    "pytest-subtests",
    "pytest-timeout",
    "redis",
    "requests",
    "shortuuid",
)
"""Imports of the suites besides the packages."""
