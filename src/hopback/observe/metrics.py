"""Events as Prometheus metrics. Needs the extra `metrics`.

Labels are bounded: queues come from the declared topology, error types are counted up to a limit
and then as `other`, so that no message can make the number of series grow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["Metrics"]

_MOST_ERROR_TYPES = 50
_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
_SIZES = (1, 10, 50, 100, 250, 500, 1000, 2500, 5000)
_STATES = ("connecting", "ready", "blocked", "closed")

Fields: TypeAlias = Mapping[str, Any]


class Metrics:
    """A subscriber that counts; `render` gives what a scrape reads."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        registry = self.registry
        self._handled = Counter(
            "hopback_deliveries", "Deliveries by outcome.", ("queue", "outcome"), registry=registry
        )
        self._duration = Histogram(
            "hopback_handler_seconds",
            "How long handlers ran.",
            ("queue",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._errors = Counter(
            "hopback_errors", "Failed runs by type of error.", ("queue", "error"), registry=registry
        )
        self._retries = Counter(
            "hopback_retries", "Retries by tier.", ("queue", "tier"), registry=registry
        )
        self._parked = Counter(
            "hopback_parked",
            "Messages put into the dead-letter queue.",
            ("queue", "exhausted"),
            registry=registry,
        )
        self._publish_failures = Counter(
            "hopback_publish_failures",
            "Publishes without a confirmed home.",
            ("exchange",),
            registry=registry,
        )
        self._overdue = Counter(
            "hopback_overdue", "Handlers past their deadline.", ("queue",), registry=registry
        )
        self._lost = Counter(
            "hopback_consumers_lost",
            "Consumers ended by the broker.",
            ("queue",),
            registry=registry,
        )
        self._paused = Gauge(
            "hopback_paused", "1 while a queue is paused.", ("queue",), registry=registry
        )
        self._connection = Gauge(
            "hopback_connection_state",
            "1 for the present state.",
            ("purpose", "state"),
            registry=registry,
        )
        self._batch = Histogram(
            "hopback_batch_size",
            "Messages in a batch.",
            ("queue",),
            buckets=_SIZES,
            registry=registry,
        )
        self._in_flight = Gauge(
            "hopback_in_flight", "Deliveries being handled.", ("queue",), registry=registry
        )
        self._depth = Gauge(
            "hopback_queue_depth", "Ready messages.", ("queue", "role"), registry=registry
        )
        self._held_back = Gauge(
            "hopback_dead_letters_held_back",
            "Dead letters that the broker cannot deliver and keeps in the source (messages_dlx).",
            ("queue",),
            registry=registry,
        )
        self._error_types: set[str] = set()
        self._on: Mapping[str, Callable[[Fields], None]] = self._subscriptions()

    def __call__(self, name: str, fields: Fields) -> None:
        """Count the event."""
        count = self._on.get(name)
        if count is not None:
            count(fields)

    def render(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    def set_in_flight(self, queue: str, count: int) -> None:
        """How many deliveries of the queue are being handled."""
        self._in_flight.labels(queue).set(count)

    def set_depth(self, queue: str, role: str, messages: int) -> None:
        """How many messages wait in a queue; `role` is main, retry or dead-letter."""
        self._depth.labels(queue, role).set(messages)

    def set_held_back(self, queue: str, messages: int) -> None:
        """How many dead letters the broker holds back in their source queue."""
        self._held_back.labels(queue).set(messages)

    # --- one method per event --------------------------------------------------------------------

    def _subscriptions(self) -> dict[str, Callable[[Fields], None]]:
        return {
            "delivery.done": lambda fields: self._outcome("done", fields),
            "delivery.retried": self._on_retried,
            "delivery.parked": self._on_parked,
            "delivery.snoozed": lambda fields: self._outcome("snooze", fields),
            "delivery.held": lambda fields: self._handled.labels(fields["queue"], "held").inc(),
            "delivery.abandoned": lambda fields: self._outcome("abandoned", fields),
            "handler.overdue": lambda fields: self._overdue.labels(fields["queue"]).inc(),
            "publish.failed": lambda fields: self._publish_failures.labels(
                fields["exchange"]
            ).inc(),
            "consumer.lost": lambda fields: self._lost.labels(fields["queue"]).inc(),
            "consumer.paused": lambda fields: self._paused.labels(fields["queue"]).set(1),
            "consumer.resumed": lambda fields: self._paused.labels(fields["queue"]).set(0),
            "connection.state": self._on_connection,
            "batch.handled": lambda fields: self._batch.labels(fields["queue"]).observe(
                fields["size"]
            ),
        }

    def _outcome(self, outcome: str, fields: Fields) -> None:
        self._handled.labels(fields["queue"], outcome).inc()
        self._duration.labels(fields["queue"]).observe(fields["duration"])

    def _on_retried(self, fields: Fields) -> None:
        self._outcome("retry", fields)
        self._retries.labels(fields["queue"], fields["tier"]).inc()
        self._count_error(fields)

    def _on_parked(self, fields: Fields) -> None:
        self._outcome("park", fields)
        self._parked.labels(fields["queue"], str(fields["exhausted"]).lower()).inc()
        self._count_error(fields)

    def _on_connection(self, fields: Fields) -> None:
        for state in _STATES:
            self._connection.labels(fields["purpose"], state).set(state == fields["state"])

    def _count_error(self, fields: Fields) -> None:
        kind = fields["error"] or "none"
        if kind not in self._error_types and len(self._error_types) >= _MOST_ERROR_TYPES:
            kind = "other"
        else:
            self._error_types.add(kind)
        self._errors.labels(fields["queue"], kind).inc()
