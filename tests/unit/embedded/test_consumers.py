"""Consumers: turns, prefetch, priorities, single active consumer, and how they end."""

from __future__ import annotations

import pytest

from hopback.broker.embedded import Refusal
from hopback.topology.model import Policy, Queue
from tests.unit.embedded.node_setup import Client, Setup


def _numbers(client: Client, count: int, queue: str = "q") -> None:
    client.put(queue, *map(str, range(1, count + 1)))


def test_consumers_take_turns() -> None:
    first = Client(Setup())
    first.classic("q")
    second = first.again()
    first.channel.qos(2)
    for client in (first, second):
        client.channel.consume("q")
    _numbers(first, 6)
    assert (first.bodies, second.bodies) == (["1", "3"], ["2", "4", "5", "6"])


def test_prefetch_limits_unacked_deliveries_per_consumer() -> None:
    client = Client(Setup())
    client.classic("q")
    client.channel.qos(2)
    client.channel.consume("q", tag="one")
    client.channel.qos(1)
    client.channel.consume("q", tag="two")
    _numbers(client, 6)
    assert client.bodies == ["1", "2", "3"]
    client.channel.ack(2)
    assert client.bodies == ["1", "2", "3", "4"]
    assert client.deliveries[-1].consumer is client.deliveries[1].consumer
    client.channel.nack(1, requeue=True)
    assert client.bodies[-1] == "1"


def test_global_prefetch_limits_channel() -> None:
    """Quorum queues refuse it, and 4.3 interprets it differently."""
    client = Client(Setup())
    client.classic("q")
    client.classic("r")
    client.channel.qos(2, whole_channel=True)
    for name in ("q", "r"):
        client.channel.consume(name)
        _numbers(client, 2, name)
    assert client.bodies == ["1", "2"]
    client.channel.ack(0, multiple=True)
    assert client.bodies == ["1", "2", "1", "2"]
    client.quorum("quorum")
    with pytest.raises(Refusal, match="does not support global qos"):
        client.channel.consume("quorum")
    assert not client.session.is_open


def test_no_ack_deliveries_are_settled_at_once() -> None:
    client = Client(Setup())
    client.classic("q")
    client.channel.qos(1)
    client.channel.consume("q", no_ack=True)
    _numbers(client, 3)
    assert client.bodies == ["1", "2", "3"]
    assert client.setup.queue("q").messages == ()


def test_paused_client_gets_no_deliveries() -> None:
    client = Client(Setup())
    client.classic("q")
    client.channel.consume("q")
    client.channel.flow(active=False)
    _numbers(client, 2)
    assert client.bodies == []
    client.channel.flow(active=True)
    assert client.bodies == ["1", "2"]


def test_consumer_of_higher_priority_is_first() -> None:
    client = Client(Setup())
    client.classic("q")
    high = client.again()
    high.channel.qos(2)
    client.channel.consume("q")
    high.channel.consume("q", arguments={"x-priority": 5})
    _numbers(client, 3)
    assert (high.bodies, client.bodies) == (["1", "2"], ["3"])
    with pytest.raises(Refusal) as caught:
        client.channel.consume("q", arguments={"x-priority": "high"})
    assert caught.value.text.endswith(
        "invalid arg 'x-priority' for queue 'q' in vhost '/': \"expected integer, got longstr\""
    )


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_single_active_consumer_is_followed_by_next(kind: str) -> None:
    first = Client(Setup())
    getattr(first, kind)("q", {"x-single-active-consumer": True})
    second = first.again()
    tag = first.channel.consume("q")
    second.channel.consume("q")
    _numbers(first, 2)
    assert (first.bodies, second.bodies) == (["1", "2"], [])
    first.channel.cancel(tag)
    _numbers(first, 1)
    assert second.bodies == ["1"]
    first.channel.close()
    assert second.bodies == ["1", "1", "2"]


def test_exclusive_consumer_excludes_others_of_classic_queue() -> None:
    """A quorum queue ignores it."""
    client = Client(Setup())
    client.classic("q")
    client.quorum("quorum")
    for first, second in ((True, False), (False, True)):
        holder = client.again()
        holder.channel.consume("q", exclusive=first)
        with pytest.raises(Refusal) as caught:
            client.again().channel.consume("q", exclusive=second)
        assert caught.value.text == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
        holder.channel.consume("quorum", exclusive=first)
        client.channel.consume("quorum", exclusive=second)
        holder.session.close()


def test_repeated_consumer_tag_closes_connection() -> None:
    client = Client(Setup())
    client.classic("q")
    client.channel.consume("q", tag="t")
    with pytest.raises(Refusal) as caught:
        client.channel.consume("q", tag="t")
    assert caught.value.text == "NOT_ALLOWED - attempt to reuse consumer tag 't'"
    assert not client.session.is_open


def test_deleted_queue_cancels_consumers_and_keeps_channel() -> None:
    client = Client(Setup())
    client.classic("q")
    tag = client.channel.consume("q")
    client.again().channel.delete_queue("q")
    assert client.cancellations == [tag]
    assert client.channel.is_open


def test_cancelled_consumer_can_settle_its_deliveries() -> None:
    client = Client(Setup())
    client.classic("q")
    tag = client.channel.consume("q")
    _numbers(client, 1)
    client.channel.cancel(tag)
    _numbers(client, 1)
    client.channel.ack(client.deliveries[0].tag)
    assert client.bodies == ["1"]
    assert client.setup.ready("q") == ["1"]


def test_auto_delete_queue_is_deleted_with_last_consumer() -> None:
    client = Client(Setup())
    client.declare(Queue("q", durable=False, auto_delete=True))
    other = client.again()
    for each in (client, other):
        each.channel.consume("q")
    client.channel.close()
    assert "q" in client.setup.node.queues
    other.session.close()
    assert client.setup.node.queues == {}


@pytest.mark.parametrize("version", ["3.10.8", "4.0.5"])
@pytest.mark.parametrize("taken_by", ["consume", "get"])
def test_consumer_timeout_closes_channel(version: str, taken_by: str) -> None:
    """The broker checks every minute."""
    client = Client(Setup(version, consumer_timeout=90))
    client.classic("q")
    client.put("q")
    getattr(client.channel, taken_by)("q")
    client.setup.wait(119)
    assert client.channel.is_open
    client.setup.wait(1)
    assert client.refusal is not None
    assert client.refusal.text == (
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used:"
        " 90000 ms. This timeout value can be configured, see consumers doc guide to learn more"
    )
    assert client.setup.ready("q") == ["m"]


def test_settled_delivery_does_not_time_out() -> None:
    client = Client(Setup(consumer_timeout=90))
    client.classic("q")
    client.put("q", "1", "2")
    client.channel.ack(client.get("q").tag)
    client.setup.wait(60)
    client.get("q")
    client.setup.wait(119)
    assert client.channel.is_open
    client.setup.wait(1)
    assert not client.channel.is_open


def test_consumer_timeout_of_4_3_ends_consumer_of_quorum_queue() -> None:
    """The channel stays, the message is requeued, a late ack has no effect.

    Classic queues are not affected.
    """
    client = Client(Setup("4.3.6", consumer_timeout=60))
    client.classic("classic")
    client.quorum("q")
    for name in ("classic", "q"):
        client.put(name)
        client.channel.consume(name, tag=name)
    client.setup.wait(3600)
    assert (client.cancellations, client.channel.is_open) == (["q"], True)
    client.channel.ack(2)
    again = client.get("q")
    assert again.properties.headers == {"x-acquired-count": 1}


def test_policy_sets_consumer_timeout_from_3_12() -> None:
    client = Client(Setup("4.0.5", consumer_timeout=None))
    client.classic("q")
    client.setup.node.policies.put(Policy("p", "^q$", {"consumer-timeout": 60_000}))
    client.put("q")
    client.get("q")
    client.setup.wait(60)
    assert not client.channel.is_open
