"""Hazards of messages on their way, each broken and repaired."""

from __future__ import annotations

from dataclasses import replace

from hopback.topology.model import Binding, Exchange, Queue, QueueType
from hopback.topology.plan import Route, Tier
from tests.unit.topology_check.building import (
    classic,
    edited,
    live,
    loop,
    quorum,
    sound,
)
from tests.unit.topology_check.casebook import (
    Case,
    dead_letters,
    fanned_out,
    planned,
    reject_plan,
    replace_retry,
    returning,
    two_waits,
)

__all__ = ["MOVING"]

MOVING = (
    Case(
        "dead-letter-exchange-missing",
        live(classic("q", dead_letter_exchange="dxl"), exchanges=(Exchange("dlx"),)),
        dead_letters("fanout", ""),
        "error",
        "queue `q`",
        "exchange `dxl`, which does not exist",
    ),
    Case(
        "dead-letter-unroutable",
        dead_letters("direct", "other", dead_letter_routing_key="dead"),
        dead_letters("direct", "dead", dead_letter_routing_key="dead"),
        "error",
        "queue `q`",
        "no binding of exchange `dlx` matches the key `dead`",
    ),
    Case(
        "dead-letter-partly-unroutable",
        replace(
            dead_letters("topic", "a.*"),
            bindings=(*dead_letters("topic", "a.*").bindings, Binding("events", "q", "b")),
        ),
        replace(
            dead_letters("topic", "a.*", "b"),
            bindings=(*dead_letters("topic", "a.*", "b").bindings, Binding("events", "q", "b")),
        ),
        "warning",
        "queue `q`",
        "matches the key `b`",
    ),
    Case(
        "dead-letters-reach-others",
        fanned_out("q.retry", "billing"),
        fanned_out("q.retry"),
        "warning",
        "queue `q`",
        "Through exchange `failed` its dead letters reach queue `q.retry` and also queue `billing`",
    ),
    Case(
        "at-most-once",
        edited(sound(), "orders.retry.1s", dead_letter_strategy=None),
        sound(),
        "warning",
        "queue `orders`",
        "at most once: back from the retry queue.",
    ),
    Case(
        "at-least-once-falls-back",
        edited(sound(), "orders.retry.1s", overflow=None),
        sound(),
        "error",
        "queue `orders.retry.1s`",
        "lacks `x-overflow: reject-publish`",
    ),
    Case(
        "dead-letter-into-stream",
        live(
            classic("q", dead_letter_exchange="", dead_letter_routing_key="s"),
            Queue("s", QueueType.STREAM),
        ),
        live(
            quorum(
                "q",
                dead_letter_exchange="",
                dead_letter_routing_key="s",
                dead_letter_strategy="at-least-once",
                overflow="reject-publish",
            ),
            Queue("s", QueueType.STREAM),
        ),
        "error",
        "queue `q`",
        "the stream `s`",
        "3.10",
    ),
    Case(
        "cycle-without-rejection",
        loop(message_ttl=300_000),
        loop(),
        "error",
        "queues `q` and `q.retry`",
        "goes through `q` and `q.retry`",
    ),
    Case(
        "chained-retry-queues",
        two_waits(chained=True),
        two_waits(chained=False),
        "error",
        "queue `q`",
        "(`w1` and `w2`)",
        "3.12.9",
    ),
    Case(
        "delivery-limit-feeds-retry",
        loop(quorum("q", dead_letter_exchange="", dead_letter_routing_key="q.retry")),
        loop(
            quorum(
                "q",
                dead_letter_exchange="",
                dead_letter_routing_key="q.retry",
                delivery_limit=-1,
            )
        ),
        "error",
        "queue `q`",
        "default delivery limit of 20",
        "4.0",
    ),
    Case(
        "max-length-feeds-retry",
        loop(max_length=10),
        loop(max_length=10, overflow="reject-publish"),
        "error",
        "queue `q`",
        "an overflowing message goes to the retry queue",
    ),
    Case(
        "expiration-feeds-retry",
        loop(),
        sound(),
        "warning",
        "queue `q`",
        "`expiration`",
    ),
    Case(
        "sound-loop-dropped",
        loop(),
        sound(),
        "warning",
        "queue `q`",
        "RabbitMQ 3.13.1",
        "3.13.1",
    ),
    Case(
        "laps-reach-delivery-limit",
        reject_plan(
            loop(quorum("q", dead_letter_exchange="", dead_letter_routing_key="q.retry")),
            attempts=21,
        ),
        reject_plan(
            loop(quorum("q", dead_letter_exchange="", dead_letter_routing_key="q.retry")),
            attempts=20,
        ),
        "warning",
        "queue `q`",
        "20 times, and the delivery limit is 20",
        "4.3",
    ),
    Case(
        "retry-without-ttl",
        edited(sound(), "orders.retry.1s", message_ttl=None),
        sound(),
        "error",
        "queue `orders.retry.1s`",
        "waits forever",
    ),
    Case(
        "retry-without-return",
        edited(sound(), "orders.retry.1s", dead_letter_routing_key="orders.dlq"),
        sound(),
        "error",
        "queue `orders.retry.1s`",
        "never return",
    ),
    Case(
        "retry-delay-differs",
        edited(sound(), "orders.retry.1s", message_ttl=2500),
        sound(),
        "warning",
        "queue `orders.retry.1s`",
        "a wait of 1s, but messages expire after 2500 ms",
    ),
    Case(
        "mixed-delays",
        planned(
            sound(),
            tiers=tuple(
                Tier(name, delay, (Route("", "orders.retry.1s", "orders.retry.1s"),))
                for name, delay in (("1s", 1000), ("1m", 60_000))
            ),
        ),
        sound(),
        "warning",
        "queue `orders.retry.1s`",
        "several delays (1s, 1m)",
    ),
    Case(
        "retry-reaches-others",
        returning("events", others=True),
        returning("events", others=False),
        "warning",
        "exchange `events`",
        "Retries of `q` return through this exchange and also reach `audit`",
    ),
    Case(
        "retry-queue-limited",
        edited(sound(), "orders.retry.1s", max_length=5, overflow="drop-head"),
        edited(sound(), "orders.retry.1s", max_length=5),
        "warning",
        "queue `orders.retry.1s`",
        "before their delay is over",
    ),
    Case(
        "retry-queue-with-priorities",
        loop(None, replace_retry(max_priority=5)),
        loop(max_priority=5),
        "warning",
        "queue `q.retry`",
        "waits behind all messages with a higher one",
    ),
)
"""In the order of the rules."""
