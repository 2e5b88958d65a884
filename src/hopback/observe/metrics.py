"""Prometheus metrics. Requires the `metrics` extra.

Handler runs are counted in plain Python objects, which are read when Prometheus scrapes. This avoids
an event for each message.

The number of label values is limited. After the limit is reached, new error types, exchanges and
consumers are counted as `other`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from hopback.extras import needs
from hopback.observe.events import RunTally
from hopback.text import clip

with needs("metrics", "hopback.observe.metrics"):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Bounded", "Metrics"]

# Maximum number of values per label, because every value adds a time series.
_MOST_VALUES = 50
_LONGEST_VALUE = 255  # bytes
# Histogram buckets in seconds.
_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
# Histogram buckets for batch sizes.
_SIZES = (1, 10, 50, 100, 250, 500, 1000, 2500, 5000)
_STATES = ("connecting", "ready", "blocked", "closed")

_COUNTERS = {
    "errors": ("Failed handler runs by error type.", ("queue", "error")),
    "retries": ("Messages sent to a retry queue.", ("queue", "tier")),
    "parked": ("Messages sent to the dead-letter queue.", ("queue", "exhausted")),
    "inbox_duplicates": ("Messages that the inbox had already recorded.", ("consumer",)),
    "publish_failures": ("Publishes without a confirm.", ("exchange",)),
    "overdue": ("Handler runs that exceeded their deadline.", ("queue",)),
    "slow": ("Handler runs reported by `handler.slow`.", ("queue",)),
    "taken_back": ("Deliveries requeued by the broker during their run.", ("queue",)),
    "consumers_lost": ("Consumers cancelled by the broker.", ("queue",)),
    "delays_cancelled": ("Cancelled delayed messages.", ("queue",)),
    "delays_early": ("Delayed messages that arrived early and wait again.", ("queue",)),
    "topology_restored": ("Declared objects that were missing and created again.", ("object",)),
    "clock_jumps": ("Clock jumps noticed by senders of periodic messages.", ("queue",)),
    "batch_failures": ("Failed messages in batches.", ("queue",)),
}
_HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "batch_size": ("Messages in a batch.", _SIZES),
    "late_seconds": ("Lateness of delayed and periodic messages.", _SECONDS),
}
_GAUGES = {
    "paused": ("1 while consumption is paused, by command or breaker.", ("queue",)),
    "connection_state": ("1 for the current state, otherwise 0.", ("purpose", "state")),
    "in_flight": ("Deliveries in progress.", ("queue",)),
    "queue_depth": (
        "Ready messages and held dead letters. The role is main, retry or dead-letter.",
        ("queue", "role"),
    ),
    "changed_waits": ("Declared queues whose wait is changed by a policy.", ()),
    "dead_letters_held_back": (
        "Dead letters that the broker cannot deliver and keeps in the source queue (messages_dlx).",
        ("queue",),
    ),
}


class Bounded:
    """Limits the number of label values. Further values are replaced with `other`."""

    def __init__(self, most: int = _MOST_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """Return the label for a value. It is cleaned, because values from messages may contain any bytes."""
        value = clip(value, _LONGEST_VALUE)
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return "other"
        self._known.add(value)
        return value


class _Deliveries(Collector):
    """Collects `hopback_deliveries` and `hopback_handler_seconds`."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, RunTally]] = {}
        """Runs by queue and outcome."""
        self._not_run: dict[tuple[str, str], int] = {}
        self._since: dict[tuple[str, ...], float] = {}
        """The creation time of each series."""

    def of(self, queue: str, outcome: str) -> RunTally:
        """Return the tally for a queue and outcome."""
        runs = self._runs.setdefault(queue, {})
        if outcome not in runs:
            runs[outcome] = RunTally(_SECONDS)
            self._begin(queue)
            self._begin(queue, outcome)
        return runs[outcome]

    def add_without_run(self, queue: str, outcome: str) -> None:
        """Count a delivery that was settled without running a handler."""
        self._begin(queue, outcome)
        self._not_run[queue, outcome] = self._not_run.get((queue, outcome), 0) + 1

    def _begin(self, *labels: str) -> None:
        self._since.setdefault(labels, time.time())

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples."""
        yield Metric("hopback_deliveries", "Deliveries by outcome.", "counter")
        yield Metric("hopback_handler_seconds", "How long handlers ran.", "histogram")

    def collect(self) -> Iterator[Metric]:
        """Return the current values."""
        deliveries, seconds = self.describe()
        # Check whether `_created` samples are enabled in the Prometheus client.
        probe = Counter("probe", "Shows whether `_created` is enabled.", registry=None)
        dated = any(
            sample.name.endswith("_created") for one in probe.collect() for sample in one.samples
        )
        counted = {
            (queue, outcome): sum(tally.counts)
            for queue, runs in self._runs.items()
            for outcome, tally in runs.items()
        }
        for (queue, outcome), count in (counted | self._not_run).items():
            if not count:
                continue  # a series is created with its first delivery
            labels = {"queue": queue, "outcome": outcome}
            deliveries.add_sample("hopback_deliveries_total", labels, count)
            if dated:
                began = self._since[queue, outcome]
                deliveries.add_sample("hopback_deliveries_created", labels, began)
        for queue, runs in self._runs.items():
            if not any(counted[queue, outcome] for outcome in runs):
                continue
            labels, below = {"queue": queue}, 0
            for number, step in enumerate((*_SECONDS, float("inf"))):
                below += sum(tally.counts[number] for tally in runs.values())
                bucket = {**labels, "le": str(float(step)) if step < float("inf") else "+Inf"}
                seconds.add_sample("hopback_handler_seconds_bucket", bucket, below)
            seconds.add_sample("hopback_handler_seconds_count", labels, below)
            total = sum(tally.seconds for tally in runs.values())
            seconds.add_sample("hopback_handler_seconds_sum", labels, total)
            if dated:
                seconds.add_sample("hopback_handler_seconds_created", labels, self._since[queue,])
        yield from (deliveries, seconds)


class Metrics:
    """A subscriber that updates Prometheus metrics."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry: CollectorRegistry = registry or CollectorRegistry()
        self._counters = {
            name: Counter(f"hopback_{name}", text, labels, registry=self.registry)
            for name, (text, labels) in _COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(
                f"hopback_{name}", text, ("queue",), buckets=steps, registry=self.registry
            )
            for name, (text, steps) in _HISTOGRAMS.items()
        }
        self._gauges = {
            name: Gauge(f"hopback_{name}", text, labels, registry=self.registry)
            for name, (text, labels) in _GAUGES.items()
        }
        self.set_changed_waits(None)
        self._deliveries = _Deliveries()
        self.registry.register(self._deliveries)
        self._error, self._exchange, self._consumer = Bounded(), Bounded(), Bounded()
        self._pauses: dict[str, set[str]] = {}
        """The origins of the current pauses of each queue."""
        self._on: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "delivery.done": partial(self._outcome, "done"),
            "delivery.retried": self._on_retried,
            "delivery.parked": self._on_parked,
            "delivery.snoozed": partial(self._outcome, "snooze"),
            "delivery.held": self._on_held,
            "delivery.abandoned": partial(self._outcome, "abandoned"),
            "delivery.copy": self._on_copy,
            "inbox.duplicate": self._on_duplicate,
            "handler.overdue": partial(self._count, "overdue"),
            "handler.slow": partial(self._count, "slow"),
            "delivery.taken_back": partial(self._count, "taken_back"),
            "publish.failed": self._on_publish_failed,
            "delay.sent": self._on_sent,
            "delay.early": partial(self._count, "delays_early"),
            "delay.cancelled": partial(self._count, "delays_cancelled"),
            "periodic.sent": self._on_sent,
            "periodic.clock": partial(self._count, "clock_jumps"),
            "consumer.lost": partial(self._count, "consumers_lost"),
            "consumer.paused": partial(self._on_paused, True),
            "consumer.resumed": partial(self._on_paused, False),
            "consumer.removed": self._on_removed,
            "connection.state": self._on_connection,
            "batch.handled": self._on_batch,
            "topology.restored": self._on_restored,
        }

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        """Update the metrics for an event."""
        count = self._on.get(name)
        if count is not None:
            count(fields)

    def wants(self, name: str) -> bool:
        """Return True if the event affects a metric."""
        return name in self._on

    def tally(self, queue: str) -> RunTally:
        """Return the tally for successful runs of a queue."""
        return self._deliveries.of(queue, "done")

    def render(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def set_in_flight(self, queue: str, count: int) -> None:
        """Set the number of deliveries being handled."""
        self._gauges["in_flight"].labels(queue).set(count)

    def set_depth(self, queue: str, role: str, messages: int | None) -> None:
        """Set the number of messages in a queue, or None if it is unknown."""
        self._set("queue_depth", messages, queue, role)

    def set_held_back(self, queue: str, messages: int | None) -> None:
        """Set the number of dead letters held in their source queue, or None if it is unknown."""
        self._set("dead_letters_held_back", messages, queue)

    def set_changed_waits(self, queues: int | None) -> None:
        """Set the number of queues whose TTL is changed by a policy, or None if it is unknown."""
        value = float("nan") if queues is None else queues
        self._gauges["changed_waits"].set(value)

    def _set(self, gauge: str, value: float | None, *labels: str) -> None:
        """Set a gauge. Unknown values are reported as NaN so that they do not look current."""
        if value is None:
            value = float("nan")
        self._gauges[gauge].labels(*labels).set(value)

    def _count(self, counter: str, fields: Mapping[str, Any]) -> None:
        self._counters[counter].labels(fields["queue"]).inc()

    def _outcome(self, outcome: str, fields: Mapping[str, Any]) -> None:
        self._deliveries.of(fields["queue"], outcome).add(fields["duration"])

    def _on_retried(self, fields: Mapping[str, Any]) -> None:
        self._outcome("retry", fields)
        self._counters["retries"].labels(fields["queue"], fields["tier"]).inc()
        self._count_error(fields)

    def _on_parked(self, fields: Mapping[str, Any]) -> None:
        self._outcome("park", fields)
        exhausted = str(fields["exhausted"]).lower()
        self._counters["parked"].labels(fields["queue"], exhausted).inc()
        self._count_error(fields)

    def _on_held(self, fields: Mapping[str, Any]) -> None:
        """Count a delivery that was held back. No handler was run."""
        self._deliveries.add_without_run(fields["queue"], "held")

    def _on_copy(self, fields: Mapping[str, Any]) -> None:
        """Count a copy. No handler was run."""
        self._deliveries.add_without_run(fields["queue"], "copy")

    def _on_duplicate(self, fields: Mapping[str, Any]) -> None:
        self._counters["inbox_duplicates"].labels(self._consumer(fields["consumer"])).inc()

    def _on_publish_failed(self, fields: Mapping[str, Any]) -> None:
        exchange = self._exchange(fields["exchange"])
        self._counters["publish_failures"].labels(exchange).inc()

    def _on_paused(self, paused: bool, fields: Mapping[str, Any]) -> None:
        pauses = self._pauses.setdefault(fields["queue"], set())
        (pauses.add if paused else pauses.discard)(fields["by"])
        self._gauges["paused"].labels(fields["queue"]).set(bool(pauses))

    def _on_removed(self, fields: Mapping[str, Any]) -> None:
        self._pauses.pop(fields["queue"], None)
        for gauge in ("paused", "in_flight"):
            self._gauges[gauge].labels(fields["queue"]).set(0)

    def _on_connection(self, fields: Mapping[str, Any]) -> None:
        for state in _STATES:
            here = state == fields["state"]
            self._gauges["connection_state"].labels(fields["purpose"], state).set(here)

    def _on_restored(self, fields: Mapping[str, Any]) -> None:
        self._counters["topology_restored"].labels(fields["object"]).inc()

    def _on_batch(self, fields: Mapping[str, Any]) -> None:
        self._histograms["batch_size"].labels(fields["queue"]).observe(fields["size"])
        self._counters["batch_failures"].labels(fields["queue"]).inc(fields["failed"])

    def _on_sent(self, fields: Mapping[str, Any]) -> None:
        self._histograms["late_seconds"].labels(fields["queue"]).observe(fields["late"])

    def _count_error(self, fields: Mapping[str, Any]) -> None:
        kind = self._error(fields["error"] or "none")
        self._counters["errors"].labels(fields["queue"], kind).inc()
