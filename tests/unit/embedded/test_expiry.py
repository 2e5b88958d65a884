"""Time to live: of messages, only at the head, and of queues."""

from __future__ import annotations

import pytest

from hopback.broker.embedded import Loss, Refusal
from hopback.topology.model import Policy, Queue, QueueType
from tests.unit.embedded.node_setup import Client, Setup, deaths, to

_BOTH = pytest.mark.parametrize("kind", [QueueType.CLASSIC, QueueType.QUORUM])


def _declare(client: Client, kind: QueueType, name: str, **arguments: object) -> None:
    client.declare(Queue(name, kind, arguments=to("dead", **arguments)))  # type: ignore[arg-type]


def _client(kind: QueueType, **arguments: object) -> Client:
    client = Client(Setup())
    client.classic("dead")
    _declare(client, kind, "q", **arguments)
    return client


@_BOTH
def test_only_head_of_queue_expires(kind: QueueType) -> None:
    client = _client(kind)
    client.put("q", "long", expiration="8000")
    client.put("q", "short", expiration="1000")
    client.setup.wait(7.9)
    assert client.setup.ready("dead") == []
    client.setup.wait(0.1)
    assert client.setup.ready("dead") == ["long", "short"]


@_BOTH
def test_expired_message_dies_when_head_is_taken(kind: QueueType) -> None:
    client = _client(kind)
    client.put("q", "long", expiration="8000")
    client.put("q", "short", expiration="1000")
    client.setup.wait(2)
    client.get("q")
    assert client.channel.get("q") is None
    assert client.setup.ready("dead") == ["short"]


@_BOTH
def test_smaller_ttl_of_queue_and_message_holds(kind: QueueType) -> None:
    client = _client(kind, message_ttl=1000)
    client.put("q", "queue's", expiration="5000")
    client.setup.wait(1)
    client.put("q", "own", expiration="200")
    client.setup.wait(0.2)
    assert client.setup.ready("dead") == ["queue's", "own"]
    found = [deaths(taken)[0]["original-expiration"] for taken in client.drain("dead")]
    assert found == ["5000", "200"]


@_BOTH
def test_ttl_of_zero_delivers_only_to_waiting_consumer(kind: QueueType) -> None:
    client = _client(kind, message_ttl=0)
    client.put("q", "dies")
    assert client.setup.ready("dead") == ["dies"]
    client.channel.consume("q")
    client.put("q", "lives")
    assert client.bodies == ["lives"]


@_BOTH
def test_unacked_message_expires_when_requeued(kind: QueueType) -> None:
    client = _client(kind, message_ttl=1000)
    client.put("q")
    taken = client.get("q")
    client.setup.wait(10)
    assert client.setup.ready("dead") == []
    client.channel.nack(taken.tag, requeue=True)
    assert client.setup.ready("dead") == ["m"]


@_BOTH
def test_ttl_is_set_when_message_arrives(kind: QueueType) -> None:
    client = _client(kind)
    policies = client.setup.node.policies
    policies.put(Policy("ttl", "^q$", {"message-ttl": 10_000}))
    client.put("q", "old")
    policies.put(Policy("ttl", "^q$", {"message-ttl": 100}))
    client.put("q", "new")
    client.setup.wait(9.9)
    assert client.setup.ready("dead") == []
    client.setup.wait(0.1)
    assert client.setup.ready("dead") == ["old", "new"]


def test_each_priority_expires_separately_on_4_3() -> None:
    client = Client(Setup("4.3.6"))
    client.classic("dead")
    client.quorum("q", to("dead"))
    client.put("q", "high", priority=9, expiration="60000")
    client.put("q", "low", priority=1, expiration="1000")
    client.setup.wait(1)
    assert client.setup.ready("dead") == ["low"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("abc", "no_integer"),
        ("", "no_integer"),
        (" 5", "no_integer"),
        ("1.5", '{leftover_string,".5"}'),
        ("-1", "{value_negative,-1}"),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_invalid_expiration_closes_channel(text: str, problem: str) -> None:
    client = _client(QueueType.CLASSIC)
    with pytest.raises(Refusal) as caught:
        client.put("q", expiration=text)
    assert caught.value.text == f"PRECONDITION_FAILED - invalid expiration '{text}': {problem}"


@pytest.mark.parametrize("text", ["0", "05", "+5", "315360000000"])
def test_expiration_with_sign_and_zeros_is_accepted(text: str) -> None:
    client = _client(QueueType.CLASSIC)
    client.put("q", expiration=text)
    assert client.channel.is_open


def test_unused_classic_queue_expires() -> None:
    """Declare and get renew it. Its messages are not dead-lettered."""
    client = Client(Setup())
    client.classic("dead")
    client.classic("q", to("dead", expires=1000))
    client.put("q")
    for renew in (lambda: client.classic("q", to("dead", expires=1000)), lambda: client.get("q")):
        client.setup.wait(0.9)
        renew()
    client.channel.recover()
    client.setup.wait(0.99)
    assert "q" in client.setup.node.queues
    client.setup.wait(0.01)
    assert "q" not in client.setup.node.queues
    assert client.setup.ready("dead") == []
    assert client.setup.lost() == [Loss.QUEUE_EXPIRED]


def test_consumer_prevents_queue_expiry() -> None:
    client = Client(Setup())
    client.classic("q", {"x-expires": 1000})
    tag = client.channel.consume("q")
    client.setup.wait(60)
    client.channel.cancel(tag)
    client.setup.wait(0.9)
    assert "q" in client.setup.node.queues
    client.setup.wait(0.1)
    assert "q" not in client.setup.node.queues


def test_quorum_queue_checks_expiry_every_five_seconds() -> None:
    """A declare does not renew it."""
    client = Client(Setup())
    client.quorum("q", {"x-expires": 1000})
    client.setup.wait(4.9)
    client.quorum("q", {"x-expires": 1000})
    client.setup.wait(0.1)
    assert "q" not in client.setup.node.queues
