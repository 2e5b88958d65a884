"""What differs between RabbitMQ versions, as data.

Each profile is its predecessor with what that release changed, so this file reads as a history. A
version between two profiles behaves as the older of them; one before the first behaves as the
first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from hopback.version import BrokerVersion

_MIB = 1024 * 1024
"""Bytes; RabbitMQ gives its limits in mebibytes."""


class CountHeaders(StrEnum):
    """Which counts a quorum queue writes on what it delivers."""

    ALWAYS = "always"
    """`x-delivery-count`, the number of returns; 0 is shown to `basic.get` only."""
    RETURNS = "returns"
    """`x-delivery-count`, the number of returns, absent on the first delivery."""
    FAILURES = "failures"
    """`x-delivery-count` for failed deliveries, `x-acquired-count` for returns of any kind."""


class Discards(StrEnum):
    """Which settlements without requeue raise the failure count that travels with a dead letter."""

    NONE = "none"
    ALL = "all"
    REJECT = "reject"
    """`basic.reject` only, not `basic.nack`."""


class Priorities(StrEnum):
    """How a quorum queue treats the priority of messages."""

    IGNORED = "ignored"
    TWO_CLASSES = "two-classes"
    """Above 4 is high; two high ones go before each normal one."""
    STRICT = "strict"
    """0 to 31, none given is 4, each level before the lower ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The behaviour of one RabbitMQ version."""

    version: BrokerVersion
    interprets_published_deaths: bool
    """An `x-death` header that a client publishes is taken for the broker's own."""
    scrambles_deaths: bool
    """Two and more older entries of `x-death` are reversed by each further death."""
    last_death_headers: bool
    removes_cc: bool
    """A dead-letter routing key takes the `CC` header away."""
    sorts_headers: bool
    checks_delivery_mode: bool
    unknown_exchange_type_ends_connection: bool
    """Later it ends the channel only."""
    max_body_bytes: int
    delivery_limit: int | None
    """The limit of a quorum queue that sets none."""
    negative_limit_is_none: bool
    unlimited_returns_to_tail: bool
    """Without a limit, what is nacked goes to the tail of a quorum queue."""
    failures_count_towards_limit: bool
    """Only failed deliveries count towards the limit, not every return."""
    carries_failures: bool
    """The failure count of a quorum queue goes with the dead letter into the next one."""
    carries_redelivered: bool
    """A message that was returned before it died arrives as redelivered."""
    discards: Discards
    count_headers: CountHeaders
    priorities: Priorities
    policy_expires_wins: bool
    """On a quorum queue the policy's `expires` beats the argument; later the smaller one wins."""
    consumer_timeout_per_queue: bool
    consumer_timeout_cancels: bool
    """A timeout cancels the consumer of a quorum queue and leaves the channel open."""
    apply_to_queue_types: bool
    """Policies may apply to classic or quorum queues only."""
    delayed_retry: bool
    oldest_queue_version: int
    """Of classic queues, as in `x-queue-version`."""
    refusals_name_the_right: bool
    """A refused access is said with the right that was missing."""
    passive_declare_needs_right: bool
    """Also to ask whether a queue or exchange is there takes the right to configure it."""
    global_qos_refused: bool
    """Quorum queues refuse a prefetch for the whole channel; later it is taken per consumer."""
    cancel_serves_next: bool
    """Where a classic queue has one active consumer and it is cancelled, the next one is served at once;
    before that only when a message comes back (a publish even ends RabbitMQ's queue process; not here)."""
    returns_replies: bool
    """A mandatory direct reply is returned although it was delivered: it passes no queue."""


_3_10 = Profile(
    version=BrokerVersion(3, 10),
    interprets_published_deaths=True,
    scrambles_deaths=True,
    last_death_headers=False,
    removes_cc=True,
    sorts_headers=False,
    checks_delivery_mode=True,
    unknown_exchange_type_ends_connection=True,
    max_body_bytes=128 * _MIB,
    delivery_limit=None,
    negative_limit_is_none=False,
    unlimited_returns_to_tail=True,
    failures_count_towards_limit=False,
    carries_failures=False,
    carries_redelivered=False,
    discards=Discards.NONE,
    count_headers=CountHeaders.ALWAYS,
    priorities=Priorities.IGNORED,
    policy_expires_wins=True,
    consumer_timeout_per_queue=False,
    consumer_timeout_cancels=False,
    apply_to_queue_types=False,
    delayed_retry=False,
    oldest_queue_version=1,
    refusals_name_the_right=False,
    passive_declare_needs_right=False,
    global_qos_refused=True,
    cancel_serves_next=False,
    returns_replies=True,
)
_3_12 = replace(
    _3_10,
    version=BrokerVersion(3, 12),
    count_headers=CountHeaders.RETURNS,
    consumer_timeout_per_queue=True,
    apply_to_queue_types=True,
)
_3_13 = replace(
    _3_12,
    version=BrokerVersion(3, 13),
    interprets_published_deaths=False,
    scrambles_deaths=False,
    last_death_headers=True,
    removes_cc=False,
)
_3_13_3 = replace(_3_13, version=BrokerVersion(3, 13, 3), interprets_published_deaths=True)
_4_0 = replace(
    _3_13,
    version=BrokerVersion(4, 0),
    sorts_headers=True,
    checks_delivery_mode=False,
    unknown_exchange_type_ends_connection=False,
    max_body_bytes=16 * _MIB,
    delivery_limit=20,
    negative_limit_is_none=True,
    carries_failures=True,
    discards=Discards.ALL,
    priorities=Priorities.TWO_CLASSES,
    policy_expires_wins=False,
    refusals_name_the_right=True,
    cancel_serves_next=True,
)
_4_3 = replace(
    _4_0,
    version=BrokerVersion(4, 3),
    unlimited_returns_to_tail=False,
    oldest_queue_version=2,
    failures_count_towards_limit=True,
    carries_redelivered=True,
    discards=Discards.REJECT,
    count_headers=CountHeaders.FAILURES,
    priorities=Priorities.STRICT,
    consumer_timeout_cancels=True,
    delayed_retry=True,
    passive_declare_needs_right=True,
    global_qos_refused=False,
    returns_replies=False,
)

PROFILES: tuple[Profile, ...] = (_3_10, _3_12, _3_13, _3_13_3, _4_0, _4_3)
"""All profiles, oldest first."""


def profile_for(version: BrokerVersion) -> Profile:
    """The behaviour of `version`, and that version as its name."""
    known = [profile for profile in PROFILES if profile.version <= version]
    return replace(known[-1] if known else PROFILES[0], version=version)
