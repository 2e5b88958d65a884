"""Limits: length, bytes, deliveries."""

from __future__ import annotations

import pytest

from hopback.broker.embedded import EventKind, Loss
from hopback.topology.model import Policy, Queue, QueueType
from tests.unit.embedded.node_setup import EVERY_VERSION, Client, Setup, deaths, to

_BOTH = pytest.mark.parametrize("kind", [QueueType.CLASSIC, QueueType.QUORUM])
_STORED, _REFUSED = EventKind.ENQUEUED, EventKind.REFUSED


@_BOTH
@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 2}])
def test_drop_head_lets_the_oldest_die(kind: QueueType, limit: dict[str, int]) -> None:
    """Only what is ready counts, and what comes back to a full queue is the oldest."""
    client = Client(Setup())
    client.classic("dead")
    client.declare(Queue("q", kind, arguments=to("dead", **limit)))
    client.put("q", "1", "2", "3")
    assert (client.setup.ready("q"), client.setup.ready("dead")) == (["2", "3"], ["1"])
    taken = client.get("q")
    client.put("q", "4")
    client.channel.nack(taken.tag, requeue=True)
    assert (client.setup.ready("q"), client.setup.ready("dead")) == (["3", "4"], ["1", "2"])
    assert {deaths(dead_letter)[0]["reason"] for dead_letter in client.drain("dead")} == {"maxlen"}


def test_reject_publish_of_a_classic_queue_is_exact() -> None:
    """The publisher hears of it."""
    client = Client(Setup())
    client.classic("q", {"x-max-length": 2, "x-overflow": "reject-publish"})
    assert client.put("q", "1", "2", "3") == [_STORED, _STORED, _REFUSED]


def test_reject_publish_of_a_quorum_queue_takes_one_more() -> None:
    """It refuses once it is over its limit, as RabbitMQ does with publishes one by one."""
    client = Client(Setup())
    client.quorum("q", {"x-max-length": 2, "x-overflow": "reject-publish"})
    assert client.put("q", "1", "2", "3", "4") == [_STORED, _STORED, _STORED, _REFUSED]


def test_reject_publish_dlx_refuses_and_dead_letters() -> None:
    """The publisher hears a nack, and the message is in the dead-letter queue."""
    client = Client(Setup())
    client.classic("dead")
    client.classic("q", to("dead", max_length=1, overflow="reject-publish-dlx"))
    assert client.put("q", "1", "2") == [_STORED, _REFUSED]
    assert client.setup.ready("dead") == ["2"]


def test_one_full_queue_of_several_makes_a_nack_though_the_others_stored_it() -> None:
    """Sending again then makes duplicates."""
    client = Client(Setup())
    client.classic("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    client.classic("open")
    for name in ("full", "open"):
        client.bind("amq.fanout", name)
    assert client.put("", exchange="amq.fanout") == [_REFUSED]
    assert client.setup.ready("open") == ["m"]


@pytest.mark.parametrize(("version", "limit"), [("3.10.8", None), ("4.0.5", 20), ("4.3.6", 20)])
def test_the_default_limit_of_returns(version: str, limit: int | None) -> None:
    """From 4.0 on the 21st return removes the message; before nothing does."""
    client = Client(Setup(version))
    client.quorum("q")
    client.put("q")
    for _ in range(limit or 60):
        client.channel.reject(client.get("q").tag, requeue=True)
    client.channel.reject(client.get("q").tag, requeue=True)
    assert client.setup.ready("q") == ([] if limit else ["m"])
    assert client.setup.lost() == ([Loss.NO_DEAD_LETTER_EXCHANGE] if limit else [])


def _give_back(holder: Client, tag: int, how: str) -> None:
    match how:
        case "nack":
            holder.channel.nack(tag, requeue=True)
        case "reject":
            holder.channel.reject(tag, requeue=True)
        case "recover":
            holder.channel.recover()
        case "close":
            holder.session.close()


@pytest.mark.parametrize("version", ["3.10.8", "4.0.5", "4.3.6"])
@pytest.mark.parametrize("how", ["nack", "reject", "recover", "close"])
def test_what_counts_towards_the_limit(version: str, how: str) -> None:
    """Every return counts before 4.3; then only rejections and lost channels."""
    client = Client(Setup(version))
    client.quorum("q", {"x-delivery-limit": 1})
    client.put("q")
    for _ in range(2):
        holder = client.again()
        taken = holder.get("q")
        _give_back(holder, taken.tag, how)
    spared = version == "4.3.6" and how in ("nack", "recover")
    assert client.setup.ready("q") == (["m"] if spared else [])


@pytest.mark.parametrize(("version", "kept"), [("3.10.8", False), ("4.0.5", True), ("4.3.6", True)])
def test_a_negative_limit_is_none_from_4_0_on(version: str, kept: bool) -> None:
    """Before, the first return deletes the message."""
    client = Client(Setup(version))
    client.quorum("q", {"x-delivery-limit": -1})
    client.put("q")
    for _ in range(30 if kept else 1):
        client.channel.nack(client.get("q").tag, requeue=True)
    assert client.setup.ready("q") == (["m"] if kept else [])


def test_argument_and_policy_give_the_smaller_limit_and_negative_the_larger() -> None:
    """Both have a say."""
    client = Client(Setup())
    client.quorum("q", {"x-delivery-limit": 5})
    policies = client.setup.node.policies
    queue = client.setup.node.queues["q"]
    policies.put(Policy("limit", "^q$", {"delivery-limit": 3}))
    assert queue.settings.delivery_limit == 3
    policies.put(Policy("limit", "^q$", {"delivery-limit": -1}))
    assert queue.settings.delivery_limit == 5


@pytest.mark.parametrize(
    ("version", "counts"),
    [
        ("3.10.8", [{"x-delivery-count": 0}, {"x-delivery-count": 1}, {"x-delivery-count": 2}]),
        ("3.12", [{}, {"x-delivery-count": 1}, {"x-delivery-count": 2}]),
        ("4.0.5", [{}, {"x-delivery-count": 1}, {"x-delivery-count": 2}]),
        (
            "4.3.6",
            [{}, {"x-acquired-count": 1}, {"x-acquired-count": 2, "x-delivery-count": 1}],
        ),
    ],
)
def test_the_counts_that_a_quorum_queue_shows(version: str, counts: list[dict[str, int]]) -> None:
    """After nothing, a nack and a reject."""
    client = Client(Setup(version))
    client.quorum("q")
    client.put("q")
    shown = []
    for settle in ("nack", "reject", "nack"):
        taken = client.get("q")
        shown.append(taken.properties.headers)
        getattr(client.channel, settle)(taken.tag, requeue=True)
    assert shown == counts


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_the_failure_count_travels_through_dead_lettering_from_4_0_on(version: str) -> None:
    """Lap n shows n on 4.0, and falls to 1 with one nack; on 4.3 only rejections count."""
    client = Client(Setup(version))
    client.quorum("main", to("wait"))
    client.quorum("wait", to("main", message_ttl=10))
    client.put("main")
    for _ in range(5):
        client.channel.nack(client.get("main").tag, requeue=False)
        client.setup.wait(1)
    taken = client.get("main")
    carried = version == "4.0.5"
    assert taken.redelivered == carried
    old = {"3.10.8": 0, "4.0.5": 5}
    assert taken.properties.headers.get("x-delivery-count") == old.get(version)
    client.channel.nack(taken.tag, requeue=True)
    shown = client.get("main").properties.headers.get("x-delivery-count")
    assert shown == (None if version == "4.3.6" else 1)


def test_on_4_3_rejections_add_up_over_laps_until_a_crash_loses_the_message() -> None:
    """Twenty-one laps by reject, one lost channel: over the limit, and a cycle. A nack is safe."""
    for settle, survives in (("reject", False), ("nack", True)):
        client = Client(Setup("4.3.6"))
        client.quorum("main", to("wait"))
        client.quorum("wait", to("main", message_ttl=10))
        client.put("main")
        for _ in range(21):
            getattr(client.channel, settle)(client.get("main").tag, requeue=False)
            client.setup.wait(1)
        client.get("main")
        client.session.close()
        client.setup.wait(1)
        assert client.setup.ready("main") == (["m"] if survives else [])
        assert client.setup.lost() == ([] if survives else [Loss.CYCLE])
