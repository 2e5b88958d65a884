"""Hazards of declarations, each broken and repaired."""

from __future__ import annotations

from dataclasses import replace

from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType
from hopback.topology.plan import Leave, Parking
from tests.unit.topology_check.building import (
    classic,
    edited,
    live,
    loop,
    quorum,
    retry_loop_plan,
    sound,
    with_queue,
)
from tests.unit.topology_check.casebook import Case, dead_letters, planned, policed, reject_plan

__all__ = ["DECLARING"]

DECLARING = (
    Case(
        "dead-letters-expire",
        edited(sound(), "orders.dlq", message_ttl=86_400_000),
        sound(),
        "error",
        "queue `orders.dlq`",
        "after 86400000 ms",
    ),
    Case(
        "dead-letter-queue-limited",
        edited(sound(), "orders.dlq", max_length=100),
        sound(),
        "error",
        "queue `orders.dlq`",
        "its oldest messages are deleted",
    ),
    Case(
        "dead-letters-move-on",
        with_queue(
            edited(sound(), "orders.dlq", dead_letter_exchange="", dead_letter_routing_key="tomb"),
            quorum("tomb"),
        ),
        with_queue(sound(), quorum("tomb")),
        "warning",
        "queue `orders.dlq`",
        "has a dead-letter exchange itself",
    ),
    Case(
        "looking-deletes",
        edited(sound(), "orders.dlq", delivery_limit=None),
        sound(),
        "error",
        "queue `orders.dlq`",
        "after it was read 21 times",
        "4.1",
    ),
    Case(
        "dead-letter-queue-shared",
        live(
            classic("a", dead_letter_exchange="", dead_letter_routing_key="dlq"),
            classic("b", dead_letter_exchange="", dead_letter_routing_key="dlq"),
            classic("dlq"),
        ),
        live(
            classic("a", dead_letter_exchange="", dead_letter_routing_key="a.dlq"),
            classic("b", dead_letter_exchange="", dead_letter_routing_key="b.dlq"),
            classic("a.dlq"),
            classic("b.dlq"),
        ),
        "info",
        "queue `dlq`",
        "shared by `a` and `b`",
    ),
    Case(
        "dead-letter-queue-is-stream",
        with_queue(sound(), Queue("orders.dlq", QueueType.STREAM)),
        sound(),
        "warning",
        "queue `orders.dlq`",
        "Its messages cannot be removed",
    ),
    Case(
        "queue-without-plan",
        with_queue(sound(), quorum("invoices")),
        replace(with_queue(sound(), quorum("invoices")), unconsumed=frozenset({"invoices"})),
        "error",
        "queue `invoices`",
        "no failure plan",
    ),
    Case(
        "plan-leads-nowhere",
        planned(sound(), parking=Parking("orders.dlq", Leave.PUBLISH, "", "orders.dead")),
        sound(),
        "error",
        "plan of queue `orders`",
        "The route for parking, exchange `` with key `orders.dead`, does not reach",
    ),
    Case(
        "reject-deletes",
        replace(
            live(classic("q"), classic("q.retry"), classic("q.dlq")), plans=(retry_loop_plan(),)
        ),
        reject_plan(loop()),
        "error",
        "queue `q`",
        "deletes every rejected message",
    ),
    Case(
        "unreachable-queue",
        replace(with_queue(sound(), quorum("lone")), unconsumed=frozenset({"lone"})),
        replace(
            with_queue(sound(), quorum("lone")),
            exchanges=(Exchange("x"),),
            bindings=(Binding("x", "lone", "k"), Binding("x", "orders", "k")),
            unconsumed=frozenset({"lone"}),
        ),
        "warning",
        "queue `lone`",
        "leads to this queue",
    ),
    Case(
        "dangling-binding",
        replace(live(classic("q")), bindings=(Binding("gone", "q"), Binding("gone", "nobody"))),
        live(classic("q"), exchanges=(Exchange("gone"),), q="gone"),
        "error",
        "binding `gone` → `nobody` (``)",
        "source `gone` and destination `nobody`",
    ),
    Case(
        "order-lost-by-retry",
        edited(sound(), "orders", single_active_consumer=True),
        edited(sound(), "orders.dlq", single_active_consumer=True),
        "info",
        "queue `orders`",
        "returns behind its successors",
    ),
    Case(
        "overflow-deletes",
        live(classic("q", max_length_bytes=1000)),
        live(classic("q", max_length_bytes=1000, overflow="reject-publish")),
        "warning",
        "queue `q`",
        "deletes its oldest messages",
    ),
    Case(
        "expiry-deletes",
        live(classic("q", message_ttl=1)),
        live(
            classic("q", message_ttl=1, dead_letter_exchange="", dead_letter_routing_key="q.dlq"),
            classic("q.dlq"),
        ),
        "warning",
        "queue `q`",
        "are deleted",
    ),
    Case(
        "delivery-limit-deletes",
        live(quorum("q")),
        live(
            quorum("q", dead_letter_exchange="", dead_letter_routing_key="q.dlq"), quorum("q.dlq")
        ),
        "warning",
        "queue `q`",
        "default delivery limit of 20",
        "4.2",
    ),
    Case(
        "first-return-deletes",
        edited(sound(), "orders.dlq", delivery_limit=-1),
        sound(),
        "error",
        "queue `orders.dlq`",
        "limit of -1",
        "3.13.7",
    ),
    Case(
        "queue-expires",
        edited(sound(), "orders.retry.1s", expires=60_000),
        sound(),
        "error",
        "queue `orders.retry.1s`",
        "after 60000 ms without a consumer, and such a queue never has one",
    ),
    Case(
        "short-lived",
        with_queue(loop(), Queue("q.dlq", durable=False)),
        loop(),
        "warning",
        "queue `q.dlq`",
        "not durable",
    ),
    Case(
        "transient-queue",
        live(Queue("q", durable=False)),
        live(Queue("q", durable=False, exclusive=True)),
        "warning",
        "queue `q`",
        "A restart of its node deletes it",
    ),
    Case(
        "classic-queue",
        loop(),
        sound(),
        "warning",
        "queue `q`",
        "3 classic queues",
    ),
    Case(
        "name-clash",
        replace(sound(), queues=(*sound().queues, sound().queues[0])),
        sound(),
        "error",
        "queue `orders`",
        "more than once",
    ),
    Case(
        "name-refused",
        live(classic("amq.mine")),
        live(classic("mine")),
        "error",
        "queue `amq.mine`",
        "`amq.`",
    ),
    Case(
        "names-alike",
        live(classic("Orders"), classic("orders ")),
        live(classic("orders"), classic("invoices")),
        "info",
        "queues `Orders` and `orders `",
        "different queues",
    ),
    Case(
        "argument-ignored",
        live(classic("q", dead_leter_exchange="dlx")),
        dead_letters("fanout", ""),
        "warning",
        "queue `q`",
        'did you mean "x-dead-letter-exchange"?',
    ),
    Case(
        "argument-refused",
        live(classic("q", delivery_limit=5)),
        live(quorum("q", delivery_limit=5)),
        "error",
        "queue `q`",
        "A classic queue has no argument `x-delivery-limit`",
    ),
    Case(
        "overflow-unsupported",
        live(quorum("q", overflow="reject-publish-dlx")),
        live(classic("q", overflow="reject-publish-dlx")),
        "warning",
        "queue `q`",
        "does not support it",
    ),
    Case(
        "alternate-exchange-missing",
        live(
            exchanges=(Exchange("x", arguments={"alternate-exchange": "spar"}), Exchange("spare"))
        ),
        live(
            exchanges=(Exchange("x", arguments={"alternate-exchange": "spare"}), Exchange("spare"))
        ),
        "warning",
        "exchange `x`",
        "`spar` does not exist",
    ),
    Case(
        "alternate-exchange-catches-nothing",
        live(
            exchanges=(Exchange("x", arguments={"alternate-exchange": "spare"}), Exchange("spare"))
        ),
        live(
            classic("unrouted"),
            exchanges=(Exchange("x", arguments={"alternate-exchange": "spare"}), Exchange("spare")),
            unrouted="spare",
        ),
        "warning",
        "exchange `x`",
        "`spare` leads to no queue",
    ),
    Case(
        "delayed-exchange",
        live(exchanges=(Exchange("later", "x-delayed-message"),)),
        live(exchanges=(Exchange("later", "direct"),)),
        "warning",
        "exchange `later`",
        "are stored on one node",
    ),
    Case(
        "policy-shadowed",
        policed(
            Policy("ttl", "^a", {"message-ttl": 5}, priority=1), Policy("all", ".*", {"expires": 9})
        ),
        policed(
            Policy("both", "^a", {"message-ttl": 5, "expires": 9}, priority=1),
            Policy("all", ".*", {"expires": 9}),
        ),
        "warning",
        "policy `all`",
        "Both this policy and `ttl` match queue `a`",
    ),
    Case(
        "policy-unmatched",
        policed(Policy("p", "^c", {"message-ttl": 5})),
        policed(Policy("p", "^a", {"message-ttl": 5})),
        "info",
        "policy `p`",
        "`^c` matches no queue",
    ),
    Case(
        "policy-refused",
        policed(Policy("p", "^a", {"mesage-ttl": 5})),
        policed(Policy("p", "^a", {"message-ttl": 5})),
        "error",
        "policy `p`",
        '`mesage-ttl` is unknown (did you mean "message-ttl"?)',
    ),
    Case(
        "policy-pattern-not-evaluated",
        policed(Policy("p", "^a++", {"message-ttl": 5})),
        policed(Policy("p", "^a+", {"message-ttl": 5})),
        "warning",
        "policy `p`",
        "possessive repetition is not evaluated",
    ),
)
"""In the order of the rules."""
