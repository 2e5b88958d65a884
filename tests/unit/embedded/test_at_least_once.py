"""Dead-lettering at least once: a queue keeps its dead letters until they are taken."""

from __future__ import annotations

import pytest

from hopback.broker.embedded import EventKind, Loss
from hopback.topology.model import Policy
from tests.unit.embedded.node_setup import EVERY_VERSION, START, Client, Setup, deaths, to

_SAFE = {"dead_letter_strategy": "at-least-once", "overflow": "reject-publish"}


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_dead_letter_waits_until_target_exists(version: str) -> None:
    """It is retried every 180 s and keeps its time of death."""
    client = Client(Setup(version))
    client.quorum("q", to("dead", message_ttl=1000, **_SAFE))
    client.put("q")
    client.setup.wait(2)
    assert (client.setup.ready("q"), len(client.setup.queue("q").held)) == ([], 1)
    client.classic("dead")
    client.setup.wait(170)
    assert client.setup.ready("dead") == []
    client.setup.wait(10)
    assert deaths(client.get("dead"))[0]["time"] == START + 1
    assert client.setup.queue("q").messages == ()
    assert client.setup.lost() == []


def test_full_target_keeps_dead_letter_in_source() -> None:
    client = Client(Setup())
    client.classic("dead", {"x-max-length": 1, "x-overflow": "reject-publish"})
    client.quorum("q", to("dead", **_SAFE))
    client.put("q", "1", "2")
    for _ in range(2):
        client.channel.nack(client.get("q").tag, requeue=False)
    assert (client.setup.ready("dead"), len(client.setup.queue("q").held)) == (["1"], 1)
    client.drain("dead")
    client.setup.wait(180)
    assert (client.setup.ready("dead"), len(client.setup.queue("q").held)) == (["2"], 0)


def test_target_that_accepted_dead_letter_does_not_get_it_again() -> None:
    client = Client(Setup())
    client.exchange("dlx", "fanout")
    client.classic("open")
    client.classic("full", {"x-max-length": 1, "x-overflow": "reject-publish"})
    client.bind("dlx", "open")
    client.bind("dlx", "full")
    client.put("full", "before")
    strategy = {f"x-{name.replace('_', '-')}": value for name, value in _SAFE.items()}
    client.quorum("q", {"x-dead-letter-exchange": "dlx", **strategy})
    client.put("q", "m")
    client.channel.nack(client.get("q").tag, requeue=False)
    client.drain("full")
    client.setup.wait(180)
    assert (client.setup.ready("open"), client.setup.ready("full")) == (["m"], ["m"])


def test_at_least_once_cycle_stays_stuck_and_counts_toward_length() -> None:
    """No message is lost or moved, as in RabbitMQ."""
    client = Client(Setup())
    client.quorum("q", to("q", message_ttl=10, max_length=1, **_SAFE))
    assert client.put("q", "1", "2") == [EventKind.ENQUEUED, EventKind.ENQUEUED]
    client.setup.wait(3600)
    assert len(client.setup.queue("q").held) == 2
    assert client.put("q", "3") == [EventKind.REFUSED]


def test_at_most_32_dead_letters_are_in_transit() -> None:
    client = Client(Setup())
    client.exchange("dlx")
    client.classic("dead")
    client.bind("dlx", "dead", "good")
    strategy = {f"x-{name.replace('_', '-')}": value for name, value in _SAFE.items()}
    client.exchange("in", "fanout")
    client.quorum("q", {"x-dead-letter-exchange": "dlx", **strategy})
    client.bind("in", "q")
    for key in ["bad"] * 32 + ["good"]:
        client.put(key, exchange="in")
        client.channel.nack(client.get("q").tag, requeue=False)
    assert (client.setup.ready("dead"), len(client.setup.queue("q").held)) == ([], 33)
    client.classic("rescue")
    client.bind("dlx", "rescue", "bad")
    client.setup.wait(180)
    assert (len(client.setup.ready("rescue")), client.setup.ready("dead")) == (32, ["m"])


def test_at_least_once_without_reject_publish_is_at_most_once() -> None:
    """RabbitMQ falls back silently too."""
    client = Client(Setup())
    client.quorum("q", to("missing", dead_letter_strategy="at-least-once"))
    client.put("q")
    client.channel.nack(client.get("q").tag, requeue=False)
    assert client.setup.lost() == [Loss.UNROUTABLE_DEAD_LETTER]


def test_changing_strategy_by_policy_deletes_held_dead_letters() -> None:
    client = Client(Setup())
    client.setup.node.policies.put(Policy("p", "^q$", {"overflow": "reject-publish"}))
    client.quorum("q", to("missing", dead_letter_strategy="at-least-once"))
    client.put("q")
    client.channel.nack(client.get("q").tag, requeue=False)
    assert len(client.setup.queue("q").held) == 1
    client.setup.node.policies.remove("p")
    assert client.setup.queue("q").held == ()
    assert client.setup.lost() == [Loss.STRATEGY_CHANGED]
