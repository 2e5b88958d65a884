"""Consumers: turns, prefetch, priorities, single active consumer, and how they end."""

from __future__ import annotations

import pytest

from hopback.broker.embedded import Refusal
from hopback.topology.model import Policy, Queue
from tests.unit.embedded.node_setup import Client, Setup


def _numbers(client: Client, count: int, queue: str = "q") -> None:
    client.put(queue, *map(str, range(1, count + 1)))


def test_consumers_take_turns() -> None:
    """One after the other, each as far as its prefetch goes."""
    first = Client(Setup())
    first.classic("q")
    second = first.again()
    first.channel.qos(2)
    for client in (first, second):
        client.channel.consume("q")
    _numbers(first, 6)
    assert (first.bodies, second.bodies) == (["1", "3"], ["2", "4", "5", "6"])


def test_prefetch_holds_deliveries_back_until_something_is_settled() -> None:
    """It belongs to each consumer that began after it was set."""
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


def test_a_ceiling_for_the_whole_channel() -> None:
    """`global` prefetch limits the channel; quorum queues refuse it, and 4.3 takes it otherwise."""
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


def test_without_acks_deliveries_are_done_at_once() -> None:
    """`no_ack` knows no limit and leaves nothing unsettled."""
    client = Client(Setup())
    client.classic("q")
    client.channel.qos(1)
    client.channel.consume("q", no_ack=True)
    _numbers(client, 3)
    assert client.bodies == ["1", "2", "3"]
    assert client.setup.queue("q").messages == ()


def test_a_client_that_does_not_keep_up_can_pause() -> None:
    """Nothing is handed to it meanwhile."""
    client = Client(Setup())
    client.classic("q")
    client.channel.consume("q")
    client.channel.flow(active=False)
    _numbers(client, 2)
    assert client.bodies == []
    client.channel.flow(active=True)
    assert client.bodies == ["1", "2"]


def test_the_consumer_of_higher_priority_comes_first() -> None:
    """The others get what it has no room for."""
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
def test_only_one_consumer_is_active_at_a_time(kind: str) -> None:
    """The next one follows when it leaves; `get` does not care."""
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


def test_an_exclusive_consumer_shuts_others_out_of_a_classic_queue() -> None:
    """403 for the second, whichever of them is exclusive; a quorum queue ignores it."""
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


def test_a_tag_used_twice_closes_the_connection() -> None:
    """530, as RabbitMQ says it."""
    client = Client(Setup())
    client.classic("q")
    client.channel.consume("q", tag="t")
    with pytest.raises(Refusal) as caught:
        client.channel.consume("q", tag="t")
    assert caught.value.text == "NOT_ALLOWED - attempt to reuse consumer tag 't'"
    assert not client.session.is_open


def test_a_deleted_queue_cancels_its_consumers() -> None:
    """The channel stays open."""
    client = Client(Setup())
    client.classic("q")
    tag = client.channel.consume("q")
    client.again().channel.delete_queue("q")
    assert client.cancellations == [tag]
    assert client.channel.is_open


def test_a_cancelled_consumer_keeps_what_it_holds() -> None:
    """It is settled on the channel, and nothing more comes."""
    client = Client(Setup())
    client.classic("q")
    tag = client.channel.consume("q")
    _numbers(client, 1)
    client.channel.cancel(tag)
    _numbers(client, 1)
    client.channel.ack(client.deliveries[0].tag)
    assert client.bodies == ["1"]
    assert client.setup.ready("q") == ["1"]


def test_an_auto_delete_queue_goes_with_its_last_consumer() -> None:
    """Not before it had one."""
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
def test_a_delivery_held_too_long_closes_the_channel(version: str, taken_by: str) -> None:
    """After the timeout, at the next look of the broker, which comes every minute."""
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


def test_a_settled_delivery_does_not_time_out() -> None:
    """Only what is still held counts, from the moment it was handed out."""
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


def test_on_4_3_a_timeout_ends_the_consumer_of_a_quorum_queue_only() -> None:
    """The channel stays, the message is back, a late ack means nothing; classic queues wait."""
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


def test_a_policy_sets_the_timeout_of_a_queue() -> None:
    """From 3.12 on; the queue's own beats that of the node."""
    client = Client(Setup("4.0.5", consumer_timeout=None))
    client.classic("q")
    client.setup.node.policies.put(Policy("p", "^q$", {"consumer-timeout": 60_000}))
    client.put("q")
    client.get("q")
    client.setup.wait(60)
    assert not client.channel.is_open
