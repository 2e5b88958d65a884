"""A topology as plain text."""

from __future__ import annotations

from dataclasses import replace

from hopback import App
from hopback.designs import DESIGNS
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.topology.roles import QueueRole, queue_roles
from hopback.topology.table import write_table
from hopback.topology.wording import plan_in_words

_RAFFLE = DESIGNS["raffle"].build()


def test_table_shows_objects_and_plans() -> None:
    assert write_table(_RAFFLE) == (
        """\
raffle

EXCHANGE               TYPE    OPTIONS
raffle_exchange        direct
raffle_retry_exchange  direct
raffle_dlx             direct

QUEUE             TYPE     ROLE         ARGUMENTS
raffle_queue      classic  main         dead-letter-exchange=raffle_dlx dead-letter-routing-key=raffle_dlq
raffle_retry_10s  classic  retry        message-ttl=10s dead-letter-exchange=raffle_exchange"""
        """ dead-letter-routing-key=raffle_queue
raffle_dlq        classic  dead-letter

FROM EXCHANGE          KEY               TO
raffle_exchange        raffle_queue      raffle_queue
raffle_retry_exchange  raffle_retry_10s  raffle_retry_10s
raffle_dlx             raffle_dlq        raffle_dlq

When the handler of raffle_queue fails:
  The handler runs up to 4 times, waiting 10s (3 times) between runs.
  A failed message leaves by confirmed publish and returns through an exchange.
  Its last failure parks it in raffle_dlq by reject, moved by the broker.
  Attempts are counted in Hopback's header and x-retries. The count restarts at one after a re-drive.
  A snoozed message waits in a retry queue, without counting.

3 queues: 1 work, 1 retry, 1 dead-letter
"""
    )


def test_table_shows_options_and_escapes_names() -> None:
    odd = Topology(
        "odd\x1b[2J",
        (Exchange("x", "headers", durable=False, internal=True),),
        (
            Queue("q", durable=False, exclusive=True, auto_delete=True),
            Queue("s", QueueType.STREAM, arguments={"x-max-age": "", "x-message-ttl": -1}),
        ),
        (Binding("x", "q", arguments={"a b": "c d"}), Binding("x", "x", "k", to_exchange=True)),
        policies=(Policy("p", ".*", {"expires": 60_000, "x": {"y": 1}}, 7),),
    )
    text = write_table(odd)
    assert text.startswith("odd\\x1b[2J\n")
    assert "x         headers  transient internal" in text
    assert "q      classic  plain  transient auto-delete exclusive" in text
    assert 's      stream   plain  max-age="" message-ttl=-1' in text
    assert 'x              - a b="c d"  q' in text
    assert "x              k            exchange x" in text
    assert "p (priority 7)  .*       all         expires=1m x=a table" in text


def test_table_of_empty_topology_is_its_name() -> None:
    assert write_table(Topology("empty")) == "empty\n"


def test_plans_are_described_in_words() -> None:
    (bus, *_) = DESIGNS["event-bus"].build().plans
    words = " ".join(plan_in_words(bus))
    assert "runs up to 11 times, waiting 5s (10 times) between runs" in words
    assert "leaves by reject, moved by the broker and returns straight to its queue" in words
    assert "counted in x-death and Hopback's header. The count continues after a re-drive" in words
    assert "waits 500ms to 2s in the consumer and is requeued" in words
    (own,) = DESIGNS["recommended"].build().plans
    assert "waiting 30s, then 5m, then 30m between runs" in plan_in_words(own)[0]
    twice, once = replace(own, attempts=2), replace(own, attempts=1)
    assert plan_in_words(twice)[0] == "The handler runs twice, waiting 30s between runs."
    runs, parked = plan_in_words(once)
    assert runs == "The handler runs once. There is no retry."
    assert parked.startswith("A failure parks the message in ")


def test_roles_come_from_plans() -> None:
    assert queue_roles(_RAFFLE) == {
        "raffle_queue": QueueRole.MAIN,
        "raffle_retry_10s": QueueRole.RETRY,
        "raffle_dlq": QueueRole.DEAD_LETTER,
    }


def test_roles_are_derived_without_plans() -> None:
    bare = replace(_RAFFLE, plans=())
    assert queue_roles(bare) == {
        "raffle_queue": QueueRole.PLAIN,
        "raffle_retry_10s": QueueRole.RETRY,
        "raffle_dlq": QueueRole.DEAD_LETTER,
    }
    assert queue_roles(replace(DESIGNS["recommended"].build(), plans=()))["orders.dlq"] is (
        QueueRole.DEAD_LETTER
    )


def test_table_ends_with_queues_by_kind_and_their_cost() -> None:
    app = App("shop")
    app.delays("7d")
    for name in ("orders", "mails"):
        app.queue(name, retry=["30s", "5m"])
    *_, kinds, cost = write_table(app.topology).splitlines()
    assert kinds == "34 queues: 26 delay, 4 retry, 2 work, 2 dead-letter"
    assert cost == (
        "34 quorum queues: idle, about 4.5 MiB of memory and 0.68% of a core"
        " on each node with a replica"
    )
