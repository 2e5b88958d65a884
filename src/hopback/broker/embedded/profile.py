"""The differences between RabbitMQ versions.

Each profile contains the changes from the previous one. A version that does not have a profile
behaves like the last profile before it, or like the first one if there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from hopback.version import BrokerVersion

_MIB = 1024 * 1024
"""RabbitMQ's limits are in mebibytes."""


class CountHeaders(StrEnum):
    """The delivery counts that a quorum queue adds to messages."""

    ALWAYS = "always"
    """`x-delivery-count`, the number of returns. If it is 0, only `basic.get` shows it."""
    RETURNS = "returns"
    """`x-delivery-count`, the number of returns. It is missing on the first delivery."""
    FAILURES = "failures"
    """`x-delivery-count` for failed deliveries, and `x-acquired-count` for all returns."""


class Discards(StrEnum):
    """Which settlements without requeue increment the failure count of a dead letter."""

    NONE = "none"
    ALL = "all"
    REJECT = "reject"
    """Only `basic.reject`, not `basic.nack`."""


class Priorities(StrEnum):
    """How quorum queues handle priorities."""

    IGNORED = "ignored"
    TWO_CLASSES = "two-classes"
    """Priorities above 4 are high. For every normal message, two with high priority are delivered.
    """
    STRICT = "strict"
    """Priorities from 0 to 31, with a default of 4. Higher ones are always delivered first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The behaviour of a RabbitMQ version."""

    version: BrokerVersion
    interprets_published_deaths: bool
    """Whether the broker trusts an `x-death` header of a publisher."""
    scrambles_deaths: bool
    """Whether each death reverses the order of the older `x-death` entries, if there are two or
    more.
    """
    last_death_headers: bool
    removes_cc: bool
    """Whether the `CC` header is removed when there is a dead-letter routing key."""
    sorts_headers: bool
    checks_delivery_mode: bool
    unknown_exchange_type_ends_connection: bool
    """Later versions only close the channel."""
    max_body_bytes: int
    delivery_limit: int | None
    """The default delivery limit of quorum queues."""
    negative_limit_is_none: bool
    unlimited_returns_to_tail: bool
    """Whether nacked messages move to the tail of a quorum queue that has no delivery limit."""
    failures_count_towards_limit: bool
    """Whether only failed deliveries count towards the delivery limit. Otherwise all returns count.
    """
    carries_failures: bool
    """Whether a dead letter keeps its failure count if the next queue is also a quorum queue."""
    carries_redelivered: bool
    """Whether the redelivered flag is kept when a message is dead-lettered."""
    discards: Discards
    count_headers: CountHeaders
    priorities: Priorities
    policy_expires_wins: bool
    """Whether a policy overrides the `expires` argument of a quorum queue. Later versions use the
    smaller value.
    """
    consumer_timeout_per_queue: bool
    consumer_timeout_cancels: bool
    """Whether a timeout only cancels the consumer of a quorum queue, and the channel stays open."""
    apply_to_queue_types: bool
    """Whether policies can be limited to classic queues or quorum queues."""
    delayed_retry: bool
    oldest_queue_version: int
    """The lowest `x-queue-version` of classic queues."""
    refusals_name_the_right: bool
    """Whether errors contain the missing permission."""
    passive_declare_needs_right: bool
    """Whether a passive declare requires any permission for the name."""
    global_qos_refused: bool
    """Whether a channel-wide prefetch is refused by quorum queues. Later versions apply it to each
    consumer.
    """
    cancel_serves_next: bool
    """Whether the next consumer becomes active as soon as the single active consumer of a classic
    queue is cancelled. In older versions this only happens when a message is returned. (A publish
    in this state crashes RabbitMQ's queue process, which we do not emulate.)
    """
    returns_replies: bool
    """Whether a mandatory direct reply is returned as unroutable, even though it was delivered. The
    reason is that it is not routed to a queue.
    """
    forged_reply_ends_connection: bool
    """Whether publishing to an invalid direct reply address closes the connection."""


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
    forged_reply_ends_connection=True,
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
    forged_reply_ends_connection=False,
)

PROFILES: tuple[Profile, ...] = (_3_10, _3_12, _3_13, _3_13_3, _4_0, _4_3)


def profile_for(version: BrokerVersion) -> Profile:
    """Return the profile for a version. Its name is set to the version."""
    known = [profile for profile in PROFILES if profile.version <= version]
    return replace(known[-1] if known else PROFILES[0], version=version)
