"""What RabbitMQ knows: queue arguments and policy keys, their values, and since which version.

A broker refuses a known argument with a wrong value, or on a queue type that does not have it; an
unknown argument it accepts and ignores. A policy with an unknown key it refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from hopback.topology.durations import LONGEST_MS
from hopback.topology.model import QueueType
from hopback.topology.wording import either
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "APPLY_TO",
    "ARGUMENTS_OF",
    "POLICY_KEYS",
    "QUEUE_ARGUMENTS",
    "Span",
    "Value",
    "policy_key",
]


@dataclass(frozen=True, slots=True)
class Value:
    """The values that an argument may have: text, of these words if any are given, by default."""

    kind: type = str
    low: int = 0
    high: int = 2**63 - 1
    words: tuple[str, ...] = ()

    def allows(self, value: object) -> bool:
        """Whether a broker accepts this value."""
        if self.kind is int:
            return _is_integer(value) and self.low <= value <= self.high
        return isinstance(value, self.kind) and (not self.words or value in self.words)

    def __str__(self) -> str:
        if self.kind is int:
            return f"a whole number from {self.low} to {self.high}"
        return "true or false" if self.kind is bool else either(self.words) or "text"


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


_FIRST = BrokerVersion(0)
_COUNT = Value(int)
_TEXT = Value()

QUEUE_ARGUMENTS: Mapping[str, Value] = {
    "x-consumer-disconnected-timeout": _COUNT,
    "x-consumer-timeout": _COUNT,
    "x-dead-letter-exchange": _TEXT,
    "x-dead-letter-routing-key": _TEXT,
    "x-dead-letter-strategy": Value(words=("at-most-once", "at-least-once")),
    "x-delayed-retry-max": _COUNT,
    "x-delayed-retry-min": _COUNT,
    "x-delayed-retry-type": Value(words=("disabled", "all", "failed", "returned")),
    "x-delivery-limit": Value(int, low=-(2**63)),
    "x-expires": Value(int, low=1, high=LONGEST_MS),
    "x-initial-cluster-size": Value(int, low=1),
    "x-max-age": _TEXT,
    "x-max-in-memory-bytes": _COUNT,
    "x-max-in-memory-length": _COUNT,
    "x-max-length": _COUNT,
    "x-max-length-bytes": _COUNT,
    "x-max-priority": Value(int, high=255),
    "x-message-ttl": Value(int, high=LONGEST_MS),
    "x-overflow": Value(words=("drop-head", "reject-publish", "reject-publish-dlx")),
    "x-queue-leader-locator": Value(words=("client-local", "balanced", "random", "least-leaders")),
    "x-queue-mode": Value(words=("default", "lazy")),
    "x-queue-version": Value(int, low=1, high=2),
    "x-quorum-initial-group-size": Value(int, low=1),
    "x-single-active-consumer": Value(bool),
    "x-stream-filter-size-bytes": Value(int, low=16, high=255),
    "x-stream-max-segment-size-bytes": _COUNT,
}
"""The arguments that change what a queue does, without `x-queue-type`."""

_SHARED = frozenset(
    {
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-expires",
        "x-max-length",
        "x-max-length-bytes",
        "x-message-ttl",
        "x-overflow",
        "x-queue-leader-locator",
        "x-single-active-consumer",
        # 4.3 refuses it on a classic queue; 3.12 to 4.2 have it there.
        "x-consumer-timeout",
    }
)

ARGUMENTS_OF: Mapping[QueueType, frozenset[str]] = {
    QueueType.CLASSIC: _SHARED | {"x-max-priority", "x-queue-mode", "x-queue-version"},
    QueueType.QUORUM: _SHARED
    | {
        "x-consumer-disconnected-timeout",
        "x-dead-letter-strategy",
        "x-delayed-retry-max",
        "x-delayed-retry-min",
        "x-delayed-retry-type",
        "x-delivery-limit",
        "x-max-in-memory-bytes",
        "x-max-in-memory-length",
        "x-quorum-initial-group-size",
    },
    QueueType.STREAM: frozenset(
        {
            "x-initial-cluster-size",
            "x-max-age",
            "x-max-length-bytes",
            "x-queue-leader-locator",
            "x-stream-filter-size-bytes",
            "x-stream-max-segment-size-bytes",
        }
    ),
}
"""Which of them each queue type has; a broker refuses the others, and compares these."""

APPLY_TO: Mapping[str, BrokerVersion] = {
    "all": _FIRST,
    "queues": _FIRST,
    "exchanges": _FIRST,
    "classic_queues": BrokerVersion(3, 12),
    "quorum_queues": BrokerVersion(3, 12),
    "streams": BrokerVersion(3, 12),
}
"""What a policy can apply to, and since which version."""


@dataclass(frozen=True, slots=True)
class Span:
    """The versions that know something: from `since` on, and before `until`."""

    since: BrokerVersion = _FIRST
    until: BrokerVersion | None = None

    def __contains__(self, version: BrokerVersion) -> bool:
        return self.since <= version and (self.until is None or version < self.until)

    def __str__(self) -> str:
        if self.until is not None:
            return f"before {self.until}"
        return f"from {self.since} on"


_ALWAYS = Span()
_MIRRORED = Span(until=BrokerVersion(4))

POLICY_KEYS: Mapping[str, Span] = {
    "alternate-exchange": _ALWAYS,
    "consumer-disconnected-timeout": Span(BrokerVersion(4, 3)),
    "consumer-timeout": Span(BrokerVersion(3, 12)),
    "dead-letter-exchange": _ALWAYS,
    "dead-letter-routing-key": _ALWAYS,
    "dead-letter-strategy": Span(BrokerVersion(3, 10)),
    "delayed-retry-max": Span(BrokerVersion(4, 3, 1)),
    "delayed-retry-min": Span(BrokerVersion(4, 3, 1)),
    "delayed-retry-type": Span(BrokerVersion(4, 3, 1)),
    "delivery-limit": Span(BrokerVersion(3, 8)),
    "expires": _ALWAYS,
    "federation-upstream": _ALWAYS,
    "federation-upstream-pattern": _ALWAYS,
    "federation-upstream-set": _ALWAYS,
    "ha-mode": _MIRRORED,
    "ha-params": _MIRRORED,
    "ha-promote-on-failure": _MIRRORED,
    "ha-promote-on-shutdown": _MIRRORED,
    "ha-sync-batch-size": _MIRRORED,
    "ha-sync-mode": _MIRRORED,
    "initial-cluster-size": Span(BrokerVersion(3, 9)),
    "max-age": Span(BrokerVersion(3, 9)),
    "max-in-memory-bytes": Span(BrokerVersion(3, 8)),
    "max-in-memory-length": Span(BrokerVersion(3, 8)),
    "max-length": _ALWAYS,
    "max-length-bytes": _ALWAYS,
    "message-ttl": _ALWAYS,
    "overflow": _ALWAYS,
    "queue-leader-locator": Span(BrokerVersion(3, 9)),
    "queue-master-locator": _ALWAYS,
    "queue-mode": _ALWAYS,
    "queue-version": Span(BrokerVersion(3, 10)),
    "stream-filter-size-bytes": Span(BrokerVersion(3, 13)),
    "stream-max-segment-size-bytes": Span(BrokerVersion(3, 9)),
    "target-group-size": Span(BrokerVersion(3, 13)),
}
"""The policy keys that brokers validate, and which versions know them."""


def policy_key(argument: str) -> str | None:
    """The policy key that does what this queue argument does, if any: queue type has none."""
    key = argument.removeprefix("x-")
    return key if argument.startswith("x-") and key in POLICY_KEYS else None
