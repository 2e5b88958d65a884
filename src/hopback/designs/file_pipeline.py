"""The file pipeline, with a retry queue and a dead-letter queue for each consumer."""

from __future__ import annotations

from hopback.designs.design import CompletionEvent, count_problems, delay_problems, refuse
from hopback.topology.expand import dead_lettering, harden, harden_queues, one_tier
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue, Topology
from hopback.topology.plan import Count, Fact, Leave, Parking, Plan, Redrive, Return, Stamp

_EVENTS = "domain.events"
_COMMANDS = "domain.commands"

REDRIVE_COMPLETED = CompletionEvent(
    exchange=_EVENTS,
    routing_key="operations.dlq.redrive.completed.v1",
    type="DlqRedriveCompleted.v1",
)
"""The event that the system publishes after a re-drive."""

_BOUND: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("q.upload.commands", _COMMANDS, ("commands.upload.#", "commands.file.reprocess.*")),
    ("q.validator", _EVENTS, ("files.uploaded.*",)),
    ("q.thumbnail", _EVENTS, ("files.validated.*",)),
    ("q.extractor", _EVENTS, ("files.validated.*",)),
    ("q.projection", _EVENTS, ("#",)),
    ("q.notification", _EVENTS, ("processing.#", "files.rejected.*")),
    ("q.audit", _EVENTS, ("#",)),
)

_PARKED = (
    Stamp("x-parked-at", Fact.NOW),
    Stamp("x-parked-from-queue", Fact.QUEUE),
    Stamp("x-parked-delivery-attempt", Fact.ATTEMPT),
    Stamp("x-parked-reason", Fact.REASON),
)


def file_pipeline(
    *, hardened: bool = False, retry_ttl_ms: int = 15_000, attempts: int = 3
) -> Topology:
    """The documented "RabbitMQ Topologia, Retry e DLQ" of a file-processing pipeline.

    Two topic exchanges feed seven queues. A failed message is rejected into `retry.q.X`, waits 15 s
    in `q.X.retry` and returns only to `q.X`. After its third failure, a confirmed publish parks it in
    `q.X.dlq`. A re-driven message waits once more, and its attempts are counted from one again.

    A retry only reaches the consumer that failed, and parking does not lose messages. In the
    faithful form (classic queues), the broker moves messages into and out of the retry queue at most
    once, so it can lose some when a node dies. The hardened form does not lose messages.
    """
    problems = [
        *delay_problems("params.retry_ttl_ms", retry_ttl_ms),
        *count_problems("params.attempts", attempts, least=1),
    ]
    refuse(problems, "file-pipeline")
    faithful = tuple(
        Plan(
            queue=queue,
            attempts=attempts,
            tiers=one_tier(retry_ttl_ms, f"retry.{queue}", "retry", f"{queue}.retry"),
            leave=Leave.REJECT,
            returns=Return.QUEUE,
            parking=Parking(f"{queue}.dlq", Leave.PUBLISH, f"dlq.{queue}", "parking"),
            count=Count.X_DEATH,
            redrive=Redrive(f"retry.{queue}", "retry"),
            park_stamps=_PARKED,
        )
        for queue, _, _ in _BOUND
    )
    bindings: list[Binding] = []
    for queue, source, keys in _BOUND:
        bindings += [Binding(source, queue, key) for key in keys]
        bindings.append(Binding(f"retry.{queue}", f"{queue}.retry", "retry"))
        bindings.append(Binding(f"dlq.{queue}", f"{queue}.dlq", "parking"))
    plans = tuple(map(harden, faithful)) if hardened else faithful
    return Topology(
        name="file-pipeline",
        exchanges=(
            Exchange(_EVENTS, ExchangeType.TOPIC),
            Exchange(_COMMANDS, ExchangeType.TOPIC),
            *(Exchange(f"{kind}.{plan.queue}") for plan in plans for kind in ("retry", "dlq")),
        ),
        queues=tuple(
            queue
            for plan in plans
            for queue in (harden_queues(plan) if hardened else _faithful_queues(plan))
        ),
        bindings=tuple(bindings),
        plans=plans,
    )


def _faithful_queues(plan: Plan) -> tuple[Queue, Queue, Queue]:
    name, delay_ms = plan.queue, plan.tiers[0].delay_ms
    return (
        Queue(name, arguments=dead_lettering(f"retry.{name}", "retry")),
        Queue(f"{name}.retry", arguments=dead_lettering("", name, ttl_ms=delay_ms)),
        Queue(f"{name}.dlq"),
    )
