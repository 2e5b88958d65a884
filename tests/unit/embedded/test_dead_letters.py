"""Dead-lettering: headers of dead letters, and losses."""

from __future__ import annotations

import pytest

from hopback.broker.embedded import EventKind, Loss, Refusal
from hopback.fields import Headers, Timestamp
from hopback.message import Properties
from hopback.topology.model import Queue, QueueType
from tests.unit.embedded.node_setup import EVERY_VERSION, START, Client, Setup, deaths, to

_SCRAMBLING = ("3.10.8", "3.12")


def _reject(client: Client, queue: str) -> None:
    client.channel.nack(client.get(queue).tag, requeue=False)


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_first_death_is_recorded_exactly(version: str) -> None:
    client = Client(Setup(version))
    client.exchange("in")
    client.classic("dead")
    client.classic("q", to("dead"))
    client.bind("in", "q", "k")
    client.put("k", exchange="in", expiration="60000", headers={"mine": "kept"})
    _reject(client, "q")
    dead_letter = client.get("dead")
    assert deaths(dead_letter) == [
        {
            "count": 1,
            "reason": "rejected",
            "queue": "q",
            "time": Timestamp(START),
            "exchange": "in",
            "routing-keys": ["k"],
            "original-expiration": "60000",
        }
    ]
    assert type(deaths(dead_letter)[0]["count"]) is int
    assert type(deaths(dead_letter)[0]["time"]) is Timestamp
    first = {
        name: dead_letter.properties.headers[f"x-first-death-{name}"]
        for name in ("exchange", "queue", "reason")
    }
    assert first == {"exchange": "in", "queue": "q", "reason": "rejected"}
    assert dead_letter.properties.headers["mine"] == "kept"
    assert ("x-last-death-queue" in dead_letter.properties.headers) == (version not in _SCRAMBLING)


def test_dead_letter_keeps_everything_except_expiration() -> None:
    client = Client(Setup())
    client.exchange("dlx", "fanout")
    client.classic("dead")
    client.classic("q", {"x-dead-letter-exchange": "dlx"})
    client.bind("dlx", "dead")
    client.put("q", "body", expiration="5000", delivery_mode=2, message_id="1", user_id="guest")
    client.channel.nack(client.get("q").tag, requeue=True)
    _reject(client, "q")
    dead_letter = client.get("dead")
    expected = Properties(
        headers=dead_letter.properties.headers, delivery_mode=2, message_id="1", user_id="guest"
    )
    assert dead_letter.properties == expected
    assert (dead_letter.exchange, dead_letter.routing_key, dead_letter.redelivered) == (
        "dlx",
        "q",
        False,
    )


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_repeated_death_increments_count(version: str) -> None:
    """The time stays that of the first death."""
    client = Client(Setup(version))
    client.classic("main", to("wait"))
    client.classic("wait", to("main", message_ttl=1000))
    client.put("main")
    for _ in range(25):
        _reject(client, "main")
        client.setup.wait(1)
    found = {(death["queue"], death["reason"]): death for death in deaths(client.get("main"))}
    assert {key: death["count"] for key, death in found.items()} == {
        ("main", "rejected"): 25,
        ("wait", "expired"): 25,
    }
    assert found["wait", "expired"]["time"] == Timestamp(START + 1)


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_order_of_deaths_is_scrambled_before_3_13(version: str) -> None:
    client = Client(Setup(version))
    for name, target in (("a", "b"), ("b", "c"), ("c", "d")):
        client.classic(name, to(target, message_ttl=10))
    client.classic("d")
    client.put("a")
    client.setup.wait(1)
    expected = ["c", "a", "b"] if version in _SCRAMBLING else ["c", "b", "a"]
    assert [death["queue"] for death in deaths(client.get("d"))] == expected


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_cycle_without_rejection_is_dropped(version: str) -> None:
    client = Client(Setup(version))
    client.classic("a", to("b", message_ttl=10))
    client.classic("b", to("a", message_ttl=10))
    client.classic("self", to("self", message_ttl=10))
    client.put("a")
    client.put("self")
    client.setup.wait(1)
    assert client.setup.lost() == [Loss.CYCLE, Loss.CYCLE]


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_two_waits_in_a_row_are_dropped_as_cycle_before_3_13(version: str) -> None:
    """The scrambled order hides the rejection."""
    client = Client(Setup(version))
    client.classic("main", to("one"))
    client.classic("one", to("two", message_ttl=10))
    client.classic("two", to("main", message_ttl=10))
    client.put("main", "m")
    for _ in range(2):
        _reject(client, "main")
        client.setup.wait(1)
    scrambles = version in _SCRAMBLING
    assert client.setup.ready("main") == ([] if scrambles else ["m"])
    assert client.setup.lost() == ([Loss.CYCLE] if scrambles else [])


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_published_x_death_counts_only_on_some_versions(version: str) -> None:
    client = Client(Setup(version))
    client.classic("q", to("dead"))
    client.classic("dead")
    client.put("q")
    for _ in range(2):
        _reject(client, "q")
        dead_letter = client.drain("dead")[0]
        client.put("q", headers=dead_letter.properties.headers)
    assert deaths(client.drain("q")[0])[0]["count"] == (
        1 if version in ("3.13", "4.0.5", "4.3.6") else 2
    )


@pytest.mark.parametrize("version", ["4.0.5", "4.3.6"])
def test_published_x_death_is_unchanged_until_next_death(version: str) -> None:
    client = Client(Setup(version))
    client.classic("q", to("dead"))
    client.classic("dead")
    foreign: Headers = {
        "x-death": [{"queue": "old", "reason": "expired", "count": 9}],
        "x-first-death-queue": "old",
    }
    client.put("q", headers=foreign)
    taken = client.get("q")
    assert taken.properties.headers == foreign
    client.channel.nack(taken.tag, requeue=False)
    dead_letter = client.get("dead")
    assert [death["queue"] for death in deaths(dead_letter)] == ["q"]
    assert dead_letter.properties.headers["x-first-death-queue"] == "q"


@pytest.mark.parametrize(
    "broken", [[{"queue": "q", "reason": "rejected", "count": "3"}], ["a", "b"]]
)
def test_malformed_x_death_crashes_old_classic_queue(broken: list[object]) -> None:
    """Consumers are cancelled, and transient messages are lost."""
    client = Client(Setup("3.10.8"))
    client.classic("q", to("dead"))
    client.classic("dead")
    client.put("q", "poison", headers={"x-death": broken}, delivery_mode=2)  # type: ignore[dict-item]
    client.put("q", "transient", delivery_mode=1)
    client.put("q", "durable", delivery_mode=2)
    tag = client.channel.consume("q")
    client.channel.nack(1, requeue=False)
    assert client.cancellations == [tag]
    assert client.setup.ready("q") == ["poison", "durable"]
    assert all(message.redelivered for message in client.setup.queue("q").ready)
    assert client.setup.lost() == [Loss.CRASH]
    client.channel.ack(2)
    assert client.setup.ready("q") == ["poison", "durable"]


def test_queue_that_crashes_repeatedly_is_stopped() -> None:
    client = Client(Setup("3.10.8"))
    client.classic("q", to("dead", message_ttl=0))
    client.put("q", headers={"x-death": ["broken"]}, delivery_mode=2)
    client.setup.wait(3600)
    assert client.setup.ready("q") == ["m"]
    assert client.put("q") == [EventKind.REFUSED]
    with pytest.raises(Refusal, match="process is stopped by supervisor"):
        client.get("q")


def test_malformed_x_death_is_lost_from_old_quorum_queue() -> None:
    client = Client(Setup("3.10.8"))
    client.quorum("q", to("dead"))
    client.classic("dead")
    client.put("q", "poison", headers={"x-death": ["a"]})
    client.put("q", "other")
    _reject(client, "q")
    assert (client.setup.ready("q"), client.setup.ready("dead")) == (["other"], [])
    assert client.setup.lost() == [Loss.CRASH]


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_x_death_that_is_not_an_array_is_replaced(version: str) -> None:
    client = Client(Setup(version))
    client.classic("q", to("dead"))
    client.classic("dead")
    client.put("q", headers={"x-death": "nonsense"})
    _reject(client, "q")
    assert [death["count"] for death in deaths(client.get("dead"))] == [1]


@pytest.mark.parametrize(("version", "kept"), [("3.10.8", False), ("4.0.5", True), ("4.3.6", True)])
def test_dead_letter_routing_key_removes_cc_on_old_versions(version: str, kept: bool) -> None:
    client = Client(Setup(version))
    client.classic("q", to("dead"))
    for name in ("copy", "blind", "dead"):
        client.classic(name)
    client.put("q", headers={"CC": ["copy"], "BCC": ["blind"]})
    assert [len(client.setup.ready(name)) for name in ("q", "copy", "blind")] == [1, 1, 1]
    assert "BCC" not in client.get("blind").properties.headers
    _reject(client, "q")
    dead_letter = client.get("dead")
    assert ("CC" in dead_letter.properties.headers) == kept
    assert deaths(dead_letter)[0]["routing-keys"] == ["q", "copy"]


def test_dead_letter_without_key_uses_all_original_keys() -> None:
    """BCC keys are included."""
    client = Client(Setup())
    client.exchange("dlx")
    client.classic("q", {"x-dead-letter-exchange": "dlx"})
    for name in ("copy", "blind"):
        client.classic(name)
        client.classic(f"dead.{name}")
        client.bind("dlx", f"dead.{name}", name)
    client.put("q", headers={"CC": ["copy"], "BCC": ["blind"]})
    _reject(client, "q")
    assert client.setup.ready("dead.copy") == client.setup.ready("dead.blind") == ["m"]


@pytest.mark.parametrize(
    ("arguments", "loss"),
    [
        ({}, Loss.NO_DEAD_LETTER_EXCHANGE),
        ({"x-dead-letter-exchange": "missing"}, Loss.MISSING_EXCHANGE),
        (to("missing"), Loss.UNROUTABLE_DEAD_LETTER),
    ],
)
def test_unroutable_dead_letters_are_lost(arguments: dict[str, str], loss: Loss) -> None:
    client = Client(Setup())
    client.classic("q", arguments)
    client.put("q")
    _reject(client, "q")
    assert client.setup.lost() == [loss]


def test_alternate_exchange_receives_unroutable_dead_letters() -> None:
    client = Client(Setup())
    client.exchange("spare", "fanout")
    client.exchange("dlx", "direct", {"alternate-exchange": "spare"})
    client.classic("caught")
    client.bind("spare", "caught")
    client.classic("q", {"x-dead-letter-exchange": "dlx"})
    client.put("q")
    _reject(client, "q")
    assert client.setup.ready("caught") == ["m"]


def test_full_classic_target_discards_dead_letters_and_quorum_target_does_not() -> None:
    client = Client(Setup())
    limit: Headers = {"x-max-length": 1, "x-overflow": "reject-publish"}
    client.classic("classic", limit)
    client.quorum("quorum", limit)
    for target in ("classic", "quorum"):
        client.classic(f"from.{target}", to(target))
        client.put(f"from.{target}", "1", "2", "3")
        for _ in range(3):
            _reject(client, f"from.{target}")
    assert client.setup.ready("classic") == ["1"]
    assert client.setup.ready("quorum") == ["1", "2", "3"]
    assert client.setup.lost() == [Loss.FULL, Loss.FULL]


@pytest.mark.parametrize("kind", [QueueType.CLASSIC, QueueType.QUORUM])
def test_long_chain_of_queues_does_not_recurse(kind: QueueType) -> None:
    client = Client(Setup())
    length = 400
    kept = {"dead_letter_strategy": "at-least-once", "overflow": "reject-publish"}
    more = kept if kind is QueueType.QUORUM else {}
    for number in range(length):
        arguments = to(f"q{number + 1}", message_ttl=0, **more)
        client.declare(Queue(f"q{number}", kind, arguments=arguments))
    client.classic(f"q{length}")
    client.put("q0")
    assert client.setup.ready(f"q{length}") == ["m"]
    died = [event for event in client.setup.events if event.kind is EventKind.DIED]
    assert len(died) == length


def test_endless_cycle_of_old_broker_does_not_stop_time() -> None:
    client = Client(Setup("3.10.8"))
    client.classic("a", to("b", message_ttl=0))
    client.classic("b", to("a", message_ttl=0))
    death: Headers = {"queue": "a", "reason": "rejected", "count": 1}
    client.put("a", headers={"x-death": [death]})
    client.setup.wait(60)
    assert len(client.setup.queue("a").messages + client.setup.queue("b").messages) == 1
