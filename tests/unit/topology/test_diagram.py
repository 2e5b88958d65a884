"""Mermaid text: contents, and escaping of hostile names."""

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


def test_flow_diagram_shows_bindings_dead_letters_and_publishes() -> None:
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


def test_shared_dead_letter_queue_is_drawn_outside_plans() -> None:
    drawn = lines(draw_flow(_FREEFLOW))
    end = max(at for at, line in enumerate(drawn) if line == "end")
    assert drawn.index('q_freeflow_events_dlq[("freeflow.events.dlq<br/>classic")]:::dead') > end
    assert 'x_freeflow_events -->|"user.*<br/>auth.*"| q_freeflow_users_queue' in drawn


def test_default_exchange_is_drawn_to_queue() -> None:
    drawn = lines(draw_flow(_OWN))
    assert 'q_orders ==>|"retry in 30s"| q_orders_retry_30s' in drawn
    assert 'q_orders_retry_30s -.->|"expired"| q_orders' in drawn
    assert 'q_orders ==>|"park"| q_orders_dlq' in drawn
    assert not any("default exchange" in line for line in drawn)


def test_undeclared_objects_are_drawn_as_missing() -> None:
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


def test_sequence_diagram_shows_message_that_always_fails() -> None:
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


def test_sequence_diagram_passes_each_tier_once() -> None:
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


def test_state_diagram_names_every_wait_and_exit() -> None:
    assert lines(draw_states(DESIGNS["event-bus"].build(), "wms.queue.wms-orders")) == [
        "stateDiagram-v2",
        "direction LR",
        'state "ready in wms.queue.wms-orders" as ready',
        'state "being handled" as handled',
        'state "waits 5s in wms.retry-queue.wms-orders" as waiting_1',
        'state "parked in wms.dlq.wms-orders" as parked',
        "[*] --> ready: published",
        "ready --> handled: delivered",
        "handled --> [*]: done",
        "handled --> waiting_1: failures 1 to 10",
        "waiting_1 --> ready: after 5s",
        "handled --> parked: failure 11, or permanent failure",
        "handled --> ready: snoozed, after a short wait in the consumer",
        "parked --> ready: re-driven",
        "parked --> [*]: discarded",
    ]
    assert "handled --> waiting_2: failure 2" in lines(draw_states(_OWN))


def test_plan_without_retries_is_drawn() -> None:
    (plan,) = _OWN.plans
    once = replace(_OWN, plans=(replace(plan, attempts=1),))
    assert "waiting" not in draw_states(once)
    assert "deliver (attempt 1 of 1)" in draw_sequence(once)


@pytest.mark.parametrize("draw", [draw_sequence, draw_states])
def test_diagram_of_queue_without_plan_is_refused(draw: object) -> None:
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
def test_diagram_labels_are_escaped(name: str, expected: str) -> None:
    assert label(name) == expected


def test_diagram_ids_are_safe_and_unique() -> None:
    ids = Ids()
    assert ids.of("q", "a.b") == "q_a_b"
    assert ids.of("q", "a-b") == "q_a_b_2"
    assert ids.of("q", "a.b") == "q_a_b"
    assert ids.of("x", "end") == "x_end"
    assert ids.of("q", "…") == "q"
    assert len(ids.of("q", "long" * 60)) <= 42


def test_delays_and_periodic_messages_are_drawn() -> None:
    queues = (Queue("reports"), schedule_queue("reports"))
    drawn = lines(draw_flow(join_topologies([Topology("own", (), queues), delay_topology("1d")])))
    assert any("queues of delays<br/>wait up to" in line for line in drawn)
    assert any('-.->|"due"|' in line for line in drawn)
    assert 'q_reports_schedule ==>|"periodic"| q_reports' in drawn
