"""The position of returned messages, and settlement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.topology.model import Queue, QueueType
from tests.unit.embedded.node_setup import Client, Setup, to

if TYPE_CHECKING:
    from hopback.fields import Headers

_KEPT, _TAIL = "123456", "456123"


def _order(version: str, kind: QueueType, how: str, limit: int | None = None) -> str:
    client = Client(Setup(version))
    arguments = {} if limit is None else {"x-delivery-limit": limit}
    client.declare(Queue("q", kind, arguments=arguments))
    client.put("q", *"123456")
    tags = [client.get("q").tag for _ in range(3)]
    match how:
        case "multiple":
            client.channel.nack(tags[-1], requeue=True, multiple=True)
        case "ascending":
            for tag in tags:
                client.channel.nack(tag, requeue=True)
        case "descending":
            for tag in reversed(tags):
                client.channel.nack(tag, requeue=True)
        case "recover":
            client.channel.recover()
        case "close":
            client.channel.close()
    return "".join(client.setup.ready("q"))


@pytest.mark.parametrize("version", ["3.10.8", "4.0.5", "4.3.6"])
@pytest.mark.parametrize("how", ["multiple", "ascending", "descending", "recover", "close"])
def test_classic_queue_returns_messages_to_their_position(version: str, how: str) -> None:
    assert _order(version, QueueType.CLASSIC, how) == _KEPT


@pytest.mark.parametrize(
    ("version", "how", "expected"),
    [
        ("3.10.8", "multiple", _TAIL),
        ("3.10.8", "ascending", _TAIL),
        ("3.10.8", "descending", "456321"),
        ("3.10.8", "recover", _TAIL),
        ("3.10.8", "close", _KEPT),
        ("4.0.5", "multiple", _KEPT),
        ("4.0.5", "ascending", _KEPT),
        ("4.0.5", "descending", "321456"),
        ("4.0.5", "close", _KEPT),
        ("4.3.6", "ascending", _KEPT),
        ("4.3.6", "descending", "321456"),
    ],
)
def test_quorum_queue_returns_messages_to_head_or_tail(
    version: str, how: str, expected: str
) -> None:
    """Without a limit a nack sends them to the tail."""
    assert _order(version, QueueType.QUORUM, how) == expected


def test_delivery_limit_decides_head_or_tail_by_version() -> None:
    assert _order("3.10.8", QueueType.QUORUM, "ascending", limit=50) == _KEPT
    assert _order("4.0.5", QueueType.QUORUM, "ascending", limit=-1) == _TAIL


def test_returned_messages_are_redelivered() -> None:
    client = Client(Setup())
    client.classic("q")
    client.put("q", "1", "2")
    client.channel.nack(client.get("q").tag, requeue=True)
    assert [taken.redelivered for taken in client.drain("q")] == [True, False]


def test_close_requeues_before_others_are_served() -> None:
    client = Client(Setup())
    client.classic("q")
    client.put("q", *"1234")
    client.channel.qos(2)
    client.channel.consume("q")
    other = client.again()
    other.channel.qos(1)
    other.channel.consume("q")
    client.session.close()
    for _ in range(3):
        other.channel.ack(other.deliveries[-1].tag)
    assert other.bodies == ["3", "1", "2", "4"]


def test_multiple_settles_all_up_to_tag() -> None:
    client = Client(Setup())
    client.classic("q")
    client.put("q", *"123456")
    tags = [client.get("q").tag for _ in range(6)]
    client.channel.ack(tags[1])
    client.channel.ack(tags[2], multiple=True)
    assert sorted(client.channel.unacked) == tags[3:]
    client.channel.nack(0, requeue=True, multiple=True)
    assert client.setup.ready("q") == ["4", "5", "6"]


def test_multiple_rejection_dead_letters_in_order() -> None:
    client = Client(Setup())
    for name in ("one", "two"):
        client.classic(f"dead.{name}")
        client.classic(name, to(f"dead.{name}"))
        client.put(name, f"{name}.1", f"{name}.2")
    tags = [client.get(name).tag for name in ("one", "two", "one", "two")]
    client.channel.nack(tags[-1], requeue=False, multiple=True)
    assert client.setup.ready("dead.one") == ["one.1", "one.2"]
    assert client.setup.ready("dead.two") == ["two.1", "two.2"]


def test_settling_delivery_of_deleted_queue_has_no_effect() -> None:
    client = Client(Setup())
    client.classic("q")
    client.put("q", "1", "2")
    tags = [client.get("q").tag for _ in range(2)]
    client.channel.delete_queue("q")
    client.channel.ack(tags[0])
    client.channel.nack(tags[1], requeue=True)
    assert client.channel.is_open
    assert client.setup.node.queues == {}


def test_delayed_retry_of_4_3_grows_with_failures() -> None:
    arguments: Headers = {
        "x-delayed-retry-type": "all",
        "x-delayed-retry-min": 300,
        "x-delayed-retry-max": 700,
    }
    client = Client(Setup("4.3.6"))
    client.quorum("q", arguments)
    client.put("q", "1", "2")
    for settle, delay in (("reject", 0.3), ("reject", 0.6), ("reject", 0.7), ("nack", 0.7)):
        getattr(client.channel, settle)(client.get("q").tag, requeue=True)
        assert client.setup.ready("q") == ["2"]
        client.setup.wait(delay - 0.01)
        assert client.setup.ready("q") == ["2"]
        client.setup.wait(0.02)
        assert client.setup.ready("q") == ["1", "2"]


@pytest.mark.parametrize(
    ("kind", "nack", "reject"), [("failed", False, True), ("returned", True, False)]
)
def test_delayed_retry_may_be_limited_to_one_kind(kind: str, nack: bool, reject: bool) -> None:
    for version in ("4.0.5", "4.3.6"):
        client = Client(Setup(version))
        client.quorum("q", {"x-delayed-retry-type": kind, "x-delayed-retry-min": 300})
        client.put("q")
        for settle, delayed in (("nack", nack), ("reject", reject)):
            getattr(client.channel, settle)(client.get("q").tag, requeue=True)
            held = len(client.setup.queue("q").delayed)
            assert held == int(delayed and version == "4.3.6")
            client.setup.wait(1)
