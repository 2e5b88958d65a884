"""Mermaid text: what is drawn, and that hostile names cannot break it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopback.designs import DESIGNS
from hopback.errors import InvalidTopology
from hopback.topology.delays import delay_topology, schedule_queue
from hopback.topology.diagram import Ids, draw_flow, draw_sequence, draw_states, label
from hopback.topology.model import Binding, Exchange, Queue, Topology, join_topologies

_RAFFLE = DESIGNS["raffle"].build()
_FREEFLOW = DESIGNS["freeflow"].build()
_OWN = DESIGNS["recommended"].build()


def lines(text: str) -> list[str]:
    """The lines without indentation and without the colours at the end."""
    return [line.strip() for line in text.splitlines() if "classDef" not in line]


def test_the_flow_shows_bindings_dead_letters_and_publishes() -> None:
    """Solid for bindings with their key, dashed for dead-lettering, thick for our publishes."""
    assert lines(draw_flow(_RAFFLE)) == [
        "flowchart LR",
        'x_raffle_exchange{{"raffle_exchange<br/>direct"}}:::exchange',
        'subgraph family_raffle_queue["raffle_queue"]',
        'x_raffle_retry_exchange{{"raffle_retry_exchange<br/>direct"}}:::exchange',
        'x_raffle_dlx{{"raffle_dlx<br/>direct"}}:::exchange',
        'q_raffle_queue["raffle_queue<br/>classic"]:::main',
        'q_raffle_retry_10s(["raffle_retry_10s<br/>classic, waits 10s"]):::retry',
        'q_raffle_dlq[("raffle_dlq<br/>classic")]:::dead',
        "end",
        'x_raffle_exchange -->|"raffle_queue"| q_raffle_queue',
        'x_raffle_retry_exchange -->|"raffle_retry_10s"| q_raffle_retry_10s',
        'x_raffle_dlx -->|"raffle_dlq"| q_raffle_dlq',
        'q_raffle_queue -.->|"dead letters, key raffle_dlq"| x_raffle_dlx',
        'q_raffle_retry_10s -.->|"expired, key raffle_queue"| x_raffle_exchange',
        'q_raffle_queue ==>|"retry in 10s"| x_raffle_retry_exchange',
    ]


def test_a_shared_dead_letter_queue_stands_outside_the_families() -> None:
    """What several plans use belongs to none of them; keys to one queue share a line."""
    drawn = lines(draw_flow(_FREEFLOW))
    end = max(at for at, line in enumerate(drawn) if line == "end")
    assert drawn.index('q_freeflow_events_dlq[("freeflow.events.dlq<br/>classic")]:::dead') > end
    assert 'x_freeflow_events -->|"user.*<br/>auth.*"| q_freeflow_users_queue' in drawn


def test_the_default_exchange_leads_straight_to_the_queue() -> None:
    """A publish or dead letter through the default exchange is drawn to the queue it names."""
    drawn = lines(draw_flow(_OWN))
    assert 'q_orders ==>|"retry in 30s"| q_orders_retry_30s' in drawn
    assert 'q_orders_retry_30s -.->|"expired"| q_orders' in drawn
    assert 'q_orders ==>|"park"| q_orders_dlq' in drawn
    assert not any("default exchange" in line for line in drawn)


def test_what_is_not_declared_is_drawn_as_missing() -> None:
    """Undeclared ends stand out; RabbitMQ's own exchanges and the default one do not."""
    odd = Topology(
        "odd",
        (Exchange("x"), Exchange("y")),
        (
            Queue("a", arguments={"x-dead-letter-exchange": ""}),
            Queue("b", arguments={"x-dead-letter-exchange": 5, "x-message-ttl": "x"}),
            Queue("c", arguments={"x-dead-letter-exchange": "gone", "x-message-ttl": 5}),
        ),
        (
            Binding("amq.topic", "b", "k"),
            Binding("x", "lost", arguments={"h": 1}),
            Binding("x", "y", to_exchange=True),
        ),
    )
    drawn = lines(draw_flow(odd))
    assert 'x{{"default exchange"}}:::exchange' in drawn
    assert 'x_amq_topic{{"amq.topic"}}:::exchange' in drawn
    assert 'q_lost{{"lost"}}:::missing' in drawn
    assert 'x_gone{{"gone"}}:::missing' in drawn
    assert 'x_x -->|" (1 arguments)"| q_lost' in drawn
    assert "x_x --> x_y" in drawn
    assert 'q_a -.->|"dead letters"| x' in drawn


def test_the_sequence_tells_the_life_of_a_message_that_always_fails() -> None:
    """Publish, deliver, fail, wait, return, and in the end park; repeated laps are a loop."""
    assert lines(draw_sequence(_RAFFLE))[8:] == [
        "producer->>x_raffle_exchange: publish",
        "x_raffle_exchange->>q_raffle_queue: route",
        "loop 3 times",
        "q_raffle_queue->>consumer: deliver (attempts 1 to 3 of 4)",
        "consumer--xconsumer: the handler fails",
        "consumer->>q_raffle_retry_10s: publish",
        "q_raffle_retry_10s-->>consumer: confirm",
        "consumer->>q_raffle_queue: ack",
        "Note over q_raffle_retry_10s: waits 10s",
        "q_raffle_retry_10s-->>q_raffle_queue: expired, back through an exchange",
        "end",
        "q_raffle_queue->>consumer: deliver (attempt 4 of 4)",
        "consumer--xconsumer: the handler fails",
        "consumer->>q_raffle_queue: reject",
        "q_raffle_queue-->>q_raffle_dlq: dead-letter",
        "Note over q_raffle_dlq: parked until it is re-driven or discarded",
    ]


def test_the_sequence_goes_through_every_tier_once() -> None:
    """With a tier for each retry there is no loop; each participant is named once."""
    drawn = lines(draw_sequence(_OWN))
    assert [line for line in drawn if line.startswith("Note over")] == [
        "Note over q_orders_retry_30s: waits 30s",
        "Note over q_orders_retry_5m: waits 5m",
        "Note over q_orders_retry_30m: waits 30m",
        "Note over q_orders_dlq: parked until it is re-driven or discarded",
    ]
    assert "loop" not in " ".join(drawn)
    assert "participant x as default exchange" in drawn
    participants = [line for line in drawn if line.startswith("participant")]
    assert len(participants) == len(set(participants)) == 8


def test_the_states_name_every_wait_and_every_exit() -> None:
    """Ready, handled, waiting, parked; and a snooze where it is spent in the consumer."""
    assert lines(draw_states(DESIGNS["event-bus"].build(), "wms.queue.wms-orders")) == [
        "stateDiagram-v2",
        "direction LR",
        'state "ready in wms.queue.wms-orders" as ready',
        'state "in the hands of the handler" as handled',
        'state "waits 5s in wms.retry-queue.wms-orders" as waiting_1',
        'state "parked in wms.dlq.wms-orders" as parked',
        "[*] --> ready: published",
        "ready --> handled: delivered",
        "handled --> [*]: done",
        "handled --> waiting_1: failures 1 to 10",
        "waiting_1 --> ready: after 5s",
        "handled --> parked: failure 11, or hopeless",
        "handled --> ready: snoozed, after a short wait in the consumer",
        "parked --> ready: re-driven",
        "parked --> [*]: discarded",
    ]
    assert "handled --> waiting_2: failure 2" in lines(draw_states(_OWN))


def test_a_plan_without_retries_is_drawn_too() -> None:
    """One attempt: no waiting, straight to the dead-letter queue."""
    (plan,) = _OWN.plans
    once = replace(_OWN, plans=(replace(plan, attempts=1),))
    assert "waiting" not in draw_states(once)
    assert "deliver (attempt 1 of 1)" in draw_sequence(once)


@pytest.mark.parametrize("draw", [draw_sequence, draw_states])
def test_a_queue_without_a_plan_cannot_be_followed(draw: object) -> None:
    """The error names the queues that have a plan."""
    assert callable(draw)
    with pytest.raises(
        InvalidTopology, match=r'queue: expected "orders", got "oders" \(did you mean'
    ):
        draw(_OWN, "oders")
    with pytest.raises(InvalidTopology, match="expected a topology with a failure plan, got none"):
        draw(Topology("empty"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shop.events", "shop.events"),
        ('a"b', "a#34;b"),
        ("x;y#z", "x#59;y#35;z"),
        ("%% no comment", "#37;#37; no comment"),
        ("<b>`code`</b>", "#60;b#62;#96;code#96;#60;/b#62;"),
        ("a\nb\x1b", "a�b�"),
        ("\ud800", "�"),
        ("é☃名", "é#9731;名"),
        ("", "(no name)"),
    ],
)
def test_labels_hold_nothing_that_mermaid_would_read(name: str, expected: str) -> None:
    """Signs with a meaning become entities, what cannot be shown a replacement character."""
    assert label(name) == expected


def test_ids_are_safe_stable_and_never_shared() -> None:
    """The same name has the same id, and two names never share one."""
    ids = Ids()
    assert ids.of("q", "a.b") == "q_a_b"
    assert ids.of("q", "a-b") == "q_a_b_2"
    assert ids.of("q", "a.b") == "q_a_b"
    assert ids.of("x", "end") == "x_end"
    assert ids.of("q", "…") == "q"
    assert len(ids.of("q", "long" * 60)) <= 42


def test_delays_and_periodic_messages_are_drawn() -> None:
    """One node for all queues of delays, and a thick line from a schedule to what it sends to."""
    queues = (Queue("reports"), schedule_queue("reports"))
    drawn = lines(draw_flow(join_topologies([Topology("own", (), queues), delay_topology("1d")])))
    assert any("queues of delays<br/>wait up to" in line for line in drawn)
    assert any('-.->|"due"|' in line for line in drawn)
    assert 'q_reports_schedule ==>|"periodic"| q_reports' in drawn
