"""Queue arguments and policy keys of RabbitMQ.

RabbitMQ rejects known arguments with an invalid value or on the wrong queue type, but ignores
unknown arguments. Policies with unknown keys are rejected. The embedded broker does not use these
tables. It has its own, which are tested against RabbitMQ.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from hopback.durations import LONGEST_MS
from hopback.topology.model import Queue, QueueType
from hopback.topology.wording import either
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hopback.fields import FieldValue


@dataclass(frozen=True, slots=True)
class Value:
    """The valid values of an argument. The default is a string, optionally limited to `words`."""

    kind: type = str
    low: int = 0
    high: int = 2**63 - 1
    words: tuple[str, ...] = ()

    def allows(self, value: object) -> bool:
        """Return True if RabbitMQ accepts the value."""
        if self.kind is int:
            if not isinstance(value, int) or isinstance(value, bool):
                return False
            return self.low <= value <= self.high
        return isinstance(value, self.kind) and (not self.words or value in self.words)

    def __str__(self) -> str:
        if self.kind is int:
            return f"a whole number from {self.low} to {self.high}"
        return "true or false" if self.kind is bool else either(self.words) or "text"


_FIRST = BrokerVersion(0)
_V3_8, _V3_9, _V3_10 = BrokerVersion(3, 8), BrokerVersion(3, 9), BrokerVersion(3, 10)
_V3_12, _V4_0, _V4_3 = BrokerVersion(3, 12), BrokerVersion(4), BrokerVersion(4, 3)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of versions. `until` is exclusive."""

    since: BrokerVersion = _FIRST
    until: BrokerVersion | None = None

    def __contains__(self, version: BrokerVersion) -> bool:
        return self.since <= version and (self.until is None or version < self.until)

    def __str__(self) -> str:
        if self.until is not None:
            return f"before {self.until}"
        return f"from {self.since} on"


class Prevails(Enum):
    """The value that RabbitMQ uses if an argument and a policy both set it."""

    ARGUMENT = "argument"
    SMALLER = "smaller"
    """RabbitMQ uses the smaller value. A negative delivery limit means unlimited."""
    POLICY_OF_QUORUM = "policy of a quorum queue"
    """RabbitMQ uses the policy for quorum queues and the argument for other queues."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A reason why an argument does not work in versions outside of `span`."""

    span: Span
    why: str
    concerns: Callable[[Queue, FieldValue], bool] = lambda queue, value: True


@dataclass(frozen=True, slots=True)
class Argument:
    """A queue argument.

    Attributes:
        live: True if a policy can change the value of an existing queue.
        ignored_before: The first version that supports the argument.
    """

    value: Value
    types: frozenset[QueueType]
    live: bool = False
    prevails: Prevails = Prevails.ARGUMENT
    ignored_before: BrokerVersion | None = None
    gaps: tuple[Gap, ...] = ()


def _is_negative(_queue: Queue, value: FieldValue) -> bool:
    return isinstance(value, int) and value < 0


def _is_classic(queue: Queue, _value: FieldValue) -> bool:
    return queue.type is QueueType.CLASSIC


def _is_quorum(queue: Queue, _value: FieldValue) -> bool:
    return queue.type is QueueType.QUORUM


_COUNT = Value(int)
_TEXT = Value()

_CLASSIC = frozenset({QueueType.CLASSIC})
_QUORUM = frozenset({QueueType.QUORUM})
_STREAM = frozenset({QueueType.STREAM})
_QUEUES = _CLASSIC | _QUORUM
_ALL = _QUEUES | _STREAM
_IGNORED_BEFORE_4_3 = Gap(Span(_V4_3), "older versions ignore it")

QUEUE_ARGUMENTS: Mapping[str, Argument] = {
    "x-consumer-disconnected-timeout": Argument(
        _COUNT, _QUORUM, ignored_before=_V4_3, gaps=(_IGNORED_BEFORE_4_3,)
    ),
    "x-consumer-timeout": Argument(
        _COUNT,
        # Supported for classic queues from 3.12 to 4.2, rejected since 4.3.
        _QUEUES,
        live=True,
        ignored_before=_V3_12,
        gaps=(
            Gap(Span(_V3_12), "older versions ignore it"),
            Gap(Span(until=_V4_3), "later versions refuse it for classic queues", _is_classic),
        ),
    ),
    "x-dead-letter-exchange": Argument(_TEXT, _QUEUES, live=True),
    "x-dead-letter-routing-key": Argument(_TEXT, _QUEUES, live=True),
    "x-dead-letter-strategy": Argument(
        Value(words=("at-most-once", "at-least-once")),
        _QUORUM,
        live=True,
        gaps=(Gap(Span(_V3_10), "older versions dead-letter at most once"),),
    ),
    "x-delayed-retry-max": Argument(
        _COUNT, _QUORUM, live=True, ignored_before=_V4_3, gaps=(_IGNORED_BEFORE_4_3,)
    ),
    "x-delayed-retry-min": Argument(
        _COUNT, _QUORUM, live=True, ignored_before=_V4_3, gaps=(_IGNORED_BEFORE_4_3,)
    ),
    "x-delayed-retry-type": Argument(
        Value(words=("disabled", "all", "failed", "returned")),
        _QUORUM,
        live=True,
        ignored_before=_V4_3,
        gaps=(Gap(Span(_V4_3), "older versions ignore it and retry at once"),),
    ),
    "x-delivery-limit": Argument(
        Value(int, low=-(2**63)),
        _QUORUM,
        live=True,
        prevails=Prevails.SMALLER,
        gaps=(
            Gap(
                Span(_V4_0),
                "older versions delete a message at its first requeue. Their default is no limit",
                _is_negative,
            ),
        ),
    ),
    "x-expires": Argument(
        Value(int, low=1, high=LONGEST_MS), _QUEUES, live=True, prevails=Prevails.SMALLER
    ),
    "x-initial-cluster-size": Argument(Value(int, low=1), _STREAM),
    "x-max-age": Argument(_TEXT, _STREAM),
    "x-max-in-memory-bytes": Argument(_COUNT, _QUORUM),
    "x-max-in-memory-length": Argument(_COUNT, _QUORUM),
    "x-max-length": Argument(_COUNT, _QUEUES, live=True, prevails=Prevails.SMALLER),
    "x-max-length-bytes": Argument(_COUNT, _ALL, live=True, prevails=Prevails.SMALLER),
    "x-max-priority": Argument(Value(int, high=255), _CLASSIC),
    "x-message-ttl": Argument(
        Value(int, high=LONGEST_MS),
        _QUEUES,
        live=True,
        prevails=Prevails.SMALLER,
        gaps=(
            Gap(
                Span(_V3_10),
                "older versions refuse it for quorum queues, in which messages would then stay forever",
                _is_quorum,
            ),
        ),
    ),
    "x-overflow": Argument(
        Value(words=("drop-head", "reject-publish", "reject-publish-dlx")),
        _QUEUES,
        live=True,
        prevails=Prevails.POLICY_OF_QUORUM,
    ),
    "x-queue-leader-locator": Argument(
        Value(words=("client-local", "balanced", "random", "least-leaders")),
        _ALL,
        live=True,
        gaps=(Gap(Span(_V3_12), "older versions refuse it for classic queues", _is_classic),),
    ),
    "x-queue-mode": Argument(Value(words=("default", "lazy")), _CLASSIC),
    "x-queue-version": Argument(
        Value(int, low=1, high=2),
        _CLASSIC,
        gaps=(
            Gap(Span(_V3_10), "older versions do not know it"),
            Gap(Span(until=_V4_3), "later versions refuse version 1", lambda _, value: value == 1),
        ),
    ),
    "x-quorum-initial-group-size": Argument(Value(int, low=1), _QUORUM),
    "x-single-active-consumer": Argument(Value(bool), _QUEUES),
    "x-stream-filter-size-bytes": Argument(Value(int, low=16, high=255), _STREAM),
    "x-stream-max-segment-size-bytes": Argument(_COUNT, _STREAM),
}
"""All queue arguments except `x-queue-type`."""

ARGUMENTS_OF: Mapping[QueueType, frozenset[str]] = {
    kind: frozenset(name for name, known in QUEUE_ARGUMENTS.items() if kind in known.types)
    for kind in QueueType
}
"""The supported arguments of each queue type."""

QUEUE_TYPES: Mapping[QueueType, BrokerVersion] = {
    QueueType.CLASSIC: _FIRST,
    QueueType.QUORUM: _V3_8,
    QueueType.STREAM: _V3_9,
}
"""The first version that supports each queue type."""

APPLY_TO: Mapping[str, BrokerVersion] = {
    "all": _FIRST,
    "queues": _FIRST,
    "exchanges": _FIRST,
    "classic_queues": BrokerVersion(3, 12),
    "quorum_queues": BrokerVersion(3, 12),
    "streams": BrokerVersion(3, 12),
}
"""The values of `apply-to`, and the first version that supports them."""

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
"""Policy keys, and the versions that support them."""


def policy_key(argument: str) -> str | None:
    """Return the policy key that corresponds to a queue argument, or None."""
    key = argument.removeprefix("x-")
    return key if argument.startswith("x-") and key in POLICY_KEYS else None
