"""The raffle, with a single retry queue."""

from __future__ import annotations

from dataclasses import replace

from hopback.designs.design import count_problems, delay_problems, refuse
from hopback.topology.expand import dead_lettering, harden, harden_queues, one_tier
from hopback.topology.model import Binding, Exchange, Queue, Topology
from hopback.topology.plan import (
    Count,
    Fact,
    Leave,
    LocalWait,
    Parking,
    Plan,
    Redrive,
    Return,
    Stamp,
)

_EXCHANGE, _QUEUE = "raffle_exchange", "raffle_queue"
_RETRY_EXCHANGE, _RETRY_QUEUE = "raffle_retry_exchange", "raffle_retry_10s"
_DLX, _DLQ = "raffle_dlx", "raffle_dlq"
_LONGEST_PAUSE_MS = 60_000
"""Maximum time to hold a failed batch of dead letters, in milliseconds."""


def raffle(*, hardened: bool = False, retry_ttl_ms: int = 10_000, max_retries: int = 3) -> Topology:
    """The documented "Processo de Enfileiramento de Usuários" of the RaffleAPI.

    A failed message is published to `raffle_retry_exchange`. `x-retries` is incremented, and
    `x-retry-reason` contains the reason. The message waits `retry_ttl_ms` in `raffle_retry_10s` and
    returns through `raffle_exchange`. `x-retries` is compared before it is incremented, so a message
    is rejected into `raffle_dlq` after `max_retries` retries (after the fourth run by default).

    Messages are not lost on the way to the retry queue. In the faithful form (classic queues), the
    broker moves messages back, and into the dead-letter queue, at most once, so it can lose some.
    The hardened form does not lose messages.
    """
    problems = [
        *delay_problems("params.retry_ttl_ms", retry_ttl_ms),
        *count_problems("params.max_retries", max_retries, least=0),
    ]
    refuse(problems, "raffle")
    faithful = Plan(
        queue=_QUEUE,
        attempts=max_retries + 1,
        tiers=one_tier(retry_ttl_ms, _RETRY_EXCHANGE, _RETRY_QUEUE, _RETRY_QUEUE),
        leave=Leave.PUBLISH,
        returns=Return.EXCHANGE,
        parking=Parking(_DLQ, Leave.REJECT, _DLX, _DLQ),
        count=Count.HEADER,
        redrive=Redrive("", _QUEUE),
        count_header="x-retries",
        retry_stamps=(Stamp("x-retry-reason", Fact.REASON),),
    )
    plan = harden(faithful) if hardened else faithful
    faithful_queues = (
        Queue(_QUEUE, arguments=dead_lettering(_DLX, _DLQ)),
        Queue(_RETRY_QUEUE, arguments=dead_lettering(_EXCHANGE, _QUEUE, ttl_ms=retry_ttl_ms)),
        Queue(_DLQ),
    )
    return Topology(
        name="raffle",
        exchanges=(Exchange(_EXCHANGE), Exchange(_RETRY_EXCHANGE), Exchange(_DLX)),
        queues=harden_queues(plan) if hardened else faithful_queues,
        bindings=(
            Binding(_EXCHANGE, _QUEUE, _QUEUE),
            Binding(_RETRY_EXCHANGE, _RETRY_QUEUE, _RETRY_QUEUE),
            Binding(_DLX, _DLQ, _DLQ),
        ),
        plans=(plan,),
    )


def consume_dead_letters(topology: Topology) -> Topology:
    """Return a topology in which the application consumes `raffle_dlq`.

    There is no retry queue. If a batch fails, the consumer waits and requeues it. Messages that
    cannot be handled at all are moved to the main queue.
    """
    plan = Plan(
        _DLQ,
        attempts=1,
        tiers=(),
        leave=Leave.PUBLISH,
        returns=Return.QUEUE,
        parking=Parking(_QUEUE, Leave.PUBLISH, "", _QUEUE),
        count=Count.HEADER,
        redrive=Redrive("", _DLQ),
        snooze=LocalWait(1_000, _LONGEST_PAUSE_MS),
    )
    return replace(topology, plans=(*topology.plans, plan))
