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
def test_only_the_head_expires(kind: QueueType) -> None:
    """A long-lived message holds up a short-lived one behind it."""
    client = _client(kind)
    client.put("q", "long", expiration="8000")
    client.put("q", "short", expiration="1000")
    client.setup.wait(7.9)
    assert client.setup.ready("dead") == []
    client.setup.wait(0.1)
    assert client.setup.ready("dead") == ["long", "short"]


@_BOTH
def test_the_head_that_is_taken_uncovers_an_expired_one(kind: QueueType) -> None:
    """What was overdue behind it dies at once, before anyone gets it."""
    client = _client(kind)
    client.put("q", "long", expiration="8000")
    client.put("q", "short", expiration="1000")
    client.setup.wait(2)
    client.get("q")
    assert client.channel.get("q") is None
    assert client.setup.ready("dead") == ["short"]


@_BOTH
def test_the_smaller_of_both_times_holds(kind: QueueType) -> None:
    """The record names the message's own even when the queue's was smaller."""
    client = _client(kind, message_ttl=1000)
    client.put("q", "queue's", expiration="5000")
    client.setup.wait(1)
    client.put("q", "own", expiration="200")
    client.setup.wait(0.2)
    assert client.setup.ready("dead") == ["queue's", "own"]
    found = [deaths(taken)[0]["original-expiration"] for taken in client.drain("dead")]
    assert found == ["5000", "200"]


@_BOTH
def test_a_time_of_zero_dies_unless_a_consumer_waits(kind: QueueType) -> None:
    """Handed over at once, it lives."""
    client = _client(kind, message_ttl=0)
    client.put("q", "dies")
    assert client.setup.ready("dead") == ["dies"]
    client.channel.consume("q")
    client.put("q", "lives")
    assert client.bodies == ["lives"]


@_BOTH
def test_what_is_held_does_not_expire_but_dies_when_it_comes_back(kind: QueueType) -> None:
    """Given back after its time, it is dead-lettered at once."""
    client = _client(kind, message_ttl=1000)
    client.put("q")
    taken = client.get("q")
    client.setup.wait(10)
    assert client.setup.ready("dead") == []
    client.channel.nack(taken.tag, requeue=True)
    assert client.setup.ready("dead") == ["m"]


@_BOTH
def test_the_time_is_stamped_when_the_message_arrives(kind: QueueType) -> None:
    """A shorter time by policy does not touch what is there, and waits behind it."""
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


def test_on_4_3_each_priority_has_a_head_of_its_own() -> None:
    """The scan looks at every level; within a level the head still blocks."""
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
def test_a_wrong_expiration_closes_the_channel(text: str, problem: str) -> None:
    """406, in the broker's words."""
    client = _client(QueueType.CLASSIC)
    with pytest.raises(Refusal) as caught:
        client.put("q", expiration=text)
    assert caught.value.text == f"PRECONDITION_FAILED - invalid expiration '{text}': {problem}"


@pytest.mark.parametrize("text", ["0", "05", "+5", "315360000000"])
def test_expirations_the_broker_takes(text: str) -> None:
    """A sign and leading zeros are fine."""
    client = _client(QueueType.CLASSIC)
    client.put("q", expiration=text)
    assert client.channel.is_open


def test_an_unused_classic_queue_is_gone_on_time() -> None:
    """Declaring it again and getting from it renew its lease; its messages are not dead-lettered."""
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


def test_a_consumer_keeps_the_queue_alive() -> None:
    """The lease begins when the last consumer leaves."""
    client = Client(Setup())
    client.classic("q", {"x-expires": 1000})
    tag = client.channel.consume("q")
    client.setup.wait(60)
    client.channel.cancel(tag)
    client.setup.wait(0.9)
    assert "q" in client.setup.node.queues
    client.setup.wait(0.1)
    assert "q" not in client.setup.node.queues


def test_a_quorum_queue_looks_every_five_seconds() -> None:
    """One second of lease lasts five, and declaring again does not renew it."""
    client = Client(Setup())
    client.quorum("q", {"x-expires": 1000})
    client.setup.wait(4.9)
    client.quorum("q", {"x-expires": 1000})
    client.setup.wait(0.1)
    assert "q" not in client.setup.node.queues
