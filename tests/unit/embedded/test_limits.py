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
def test_drop_head_drops_oldest_message(kind: QueueType, limit: dict[str, int]) -> None:
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


def test_reject_publish_of_classic_queue_is_exact() -> None:
    client = Client(Setup())
    client.classic("q", {"x-max-length": 2, "x-overflow": "reject-publish"})
    assert client.put("q", "1", "2", "3") == [_STORED, _STORED, _REFUSED]


def test_reject_publish_of_quorum_queue_accepts_one_more() -> None:
    client = Client(Setup())
    client.quorum("q", {"x-max-length": 2, "x-overflow": "reject-publish"})
    assert client.put("q", "1", "2", "3", "4") == [_STORED, _STORED, _STORED, _REFUSED]


def test_reject_publish_dlx_nacks_and_dead_letters() -> None:
    client = Client(Setup())
    client.classic("dead")
    client.classic("q", to("dead", max_length=1, overflow="reject-publish-dlx"))
    assert client.put("q", "1", "2") == [_STORED, _REFUSED]
    assert client.setup.ready("dead") == ["2"]


def test_one_full_queue_of_several_causes_nack() -> None:
    """The other queues have stored the message."""
    client = Client(Setup())
    client.classic("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    client.classic("open")
    for name in ("full", "open"):
        client.bind("amq.fanout", name)
    assert client.put("", exchange="amq.fanout") == [_REFUSED]
    assert client.setup.ready("open") == ["m"]


@pytest.mark.parametrize(("version", "limit"), [("3.10.8", None), ("4.0.5", 20), ("4.3.6", 20)])
def test_default_delivery_limit_removes_message_from_4_0(version: str, limit: int | None) -> None:
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
def test_returns_counted_toward_delivery_limit_depend_on_version(version: str, how: str) -> None:
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
def test_negative_delivery_limit_is_unlimited_from_4_0(version: str, kept: bool) -> None:
    """Before, the first return deletes the message."""
    client = Client(Setup(version))
    client.quorum("q", {"x-delivery-limit": -1})
    client.put("q")
    for _ in range(30 if kept else 1):
        client.channel.nack(client.get("q").tag, requeue=True)
    assert client.setup.ready("q") == (["m"] if kept else [])


def test_argument_and_policy_give_smaller_delivery_limit() -> None:
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
def test_delivery_count_headers_of_quorum_queue(version: str, counts: list[dict[str, int]]) -> None:
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
def test_failure_count_survives_dead_lettering_from_4_0(version: str) -> None:
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


def test_rejections_add_up_over_laps_on_4_3() -> None:
    """A crash then loses the message. A nack does not."""
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
