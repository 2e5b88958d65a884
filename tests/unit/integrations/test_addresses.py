"""Connection settings and headers of other libraries, in our own words."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pika  # type: ignore[import-untyped]
import pytest
from celery import Celery  # type: ignore[import-untyped]
from yarl import URL

from hopback.errors import UnsafeOperation
from hopback.fields import LongStr, Timestamp, UInt64
from hopback.integrations.address import broker_url
from hopback.integrations.aio_pika import connection_url
from hopback.integrations.celery import park_failed_tasks
from hopback.integrations.header_values import header_values
from hopback.integrations.pika import PikaPlans, parameters_urls
from hopback.testing.threads import BrokerThread
from hopback.wire.url import parse_url


def test_url_parts_are_quoted() -> None:
    url = broker_url("::1", 5673, user="a:b", password="p@:/?#%", virtual_host="a/b")
    found = parse_url(url)
    assert found.hosts == (("::1", 5673),)
    assert (found.credentials.user, found.credentials.secret()) == ("a:b", "p@:/?#%")
    assert found.virtual_host == "a/b"


def _connection(url: str, context: ssl.SSLContext | None = None) -> Any:
    return SimpleNamespace(url=URL(url), kwargs={"context": context})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("amqp://u:p@h:5673/shop?heartbeat=7&reconnect_interval=1", "amqp://u:p@h:5673/shop?heartbeat=7"),
        ("amqp://u:p@h/", "amqp://u:p@h:5672/%2F"),
        ("amqp://u:p@h//", "amqp://u:p@h:5672/%2F"),
        ("amqp://h/a%2Fb?name=shop&timeout=9", "amqp://h:5672/a%2Fb"),
        (
            "amqps://u:p@h/?cafile=/ca.pem&no_verify_ssl=1",
            "amqps://u:p@h:5671/%2F?cacertfile=%2Fca.pem&verify=verify_none",
        ),
        ("amqps://h/?auth=EXTERNAL", "amqps://h:5671/%2F?auth_mechanism=external"),
    ],
)  # fmt: skip
def test_aio_pika_address_is_converted(theirs: str, ours: str) -> None:
    assert connection_url(_connection(theirs)) == ours
    parse_url(ours)


def test_ssl_context_is_refused() -> None:
    """Ignoring it would connect without TLS or with other authorities."""
    with pytest.raises(UnsafeOperation, match="publish_to"):
        connection_url(_connection("amqps://h/", ssl.create_default_context()))
    secured = pika.SSLOptions(ssl.create_default_context())
    with pytest.raises(UnsafeOperation, match="publish_to"):
        parameters_urls(pika.ConnectionParameters(ssl_options=secured))


def test_pika_parameters_are_converted() -> None:
    login = pika.PlainCredentials("u", "p@")
    one = pika.ConnectionParameters("h", 5673, "shop", login, heartbeat=7)
    assert parameters_urls(one) == ["amqp://u:p%40@h:5673/shop?heartbeat=7"]
    outer = pika.ConnectionParameters("h", credentials=pika.credentials.ExternalCredentials())
    assert parameters_urls([one, outer]) == [
        "amqp://u:p%40@h:5673/shop?heartbeat=7",
        "amqp://h:5672/%2F?auth_mechanism=external",
    ]
    with pytest.raises(ValueError, match="got none"):
        parameters_urls([])


def test_pika_plans_use_second_node_if_first_is_down() -> None:
    with BrokerThread() as node:
        down = pika.ConnectionParameters("127.0.0.1", 1)
        plans = PikaPlans([down, pika.URLParameters(node.url)])
        plans.queue("orders", retry=["1h"])
        with plans:
            plans.start()
            assert "orders.dlq" in _queues(node)


def test_celery_plans_use_second_node_if_first_is_down() -> None:
    with BrokerThread() as node:
        app = Celery("shop", broker=f"amqp://127.0.0.1:1//;{node.url}", set_as_current=False)
        plans = park_failed_tasks(app, ["orders"])
        plans.start()
        try:
            assert "orders.dlq" in _queues(node)
        finally:
            plans.stop()


def _queues(node: BrokerThread) -> set[str]:
    return {queue.name for queue in node.snapshot().queues}


class _Long(int):
    """A number as some clients have it."""


def test_headers_keep_their_types() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    found = header_values(
        {
            "number": _Long(7),
            "large": 2**64 - 1,
            "yes": True,
            "moment": moment,
            "naive": moment.replace(tzinfo=None),
            "bytes": bytearray(b"x"),
            "text": b"\xff",
            "price": Decimal("1.5"),
            "list": [1, {"a": None}, object()],
            "odd": object(),
        },
        text_type=LongStr,
    )
    assert found == {
        "number": 7,
        "large": 2**64 - 1,
        "yes": True,
        "moment": Timestamp(moment.timestamp()),
        "naive": Timestamp(moment.timestamp()),
        "bytes": b"x",
        "text": LongStr(b"\xff"),
        "price": Decimal("1.5"),
        "list": [1, {"a": None}],
    }
    assert [type(found[name]) for name in ("number", "large", "bytes")] == [int, UInt64, bytes]
    assert header_values(None) == {}
