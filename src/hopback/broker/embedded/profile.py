"""Differences between RabbitMQ versions, as data.

Each profile is its predecessor plus the changes of that release. A version between two profiles
behaves like the older one. A version before the first behaves like the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from hopback.version import BrokerVersion

_MIB = 1024 * 1024
"""Bytes. RabbitMQ's limits are in mebibytes."""


class CountHeaders(StrEnum):
    """The counts that a quorum queue adds to deliveries."""

    ALWAYS = "always"
    """`x-delivery-count`, the number of returns. 0 is shown only to `basic.get`."""
    RETURNS = "returns"
    """`x-delivery-count`, the number of returns, absent on the first delivery."""
    FAILURES = "failures"
    """`x-delivery-count` for failed deliveries, `x-acquired-count` for returns of any kind."""


class Discards(StrEnum):
    """Which settlements without requeue raise the failure count that travels with a dead letter."""

    NONE = "none"
    ALL = "all"
    REJECT = "reject"
    """Applies only to `basic.reject`, not to `basic.nack`."""


class Priorities(StrEnum):
    """How a quorum queue treats the priority of messages."""

    IGNORED = "ignored"
    TWO_CLASSES = "two-classes"
    """Priorities above 4 are high. Two high messages are delivered for each normal one."""
    STRICT = "strict"
    """Priorities 0 to 31, 4 by default. Each level is delivered before lower ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The behaviour of one RabbitMQ version."""

    version: BrokerVersion
    interprets_published_deaths: bool
    """Whether a published `x-death` header counts as the broker's."""
    scrambles_deaths: bool
    """Two and more older entries of `x-death` are reversed by each further death."""
    last_death_headers: bool
    removes_cc: bool
    """A dead-letter routing key takes the `CC` header away."""
    sorts_headers: bool
    checks_delivery_mode: bool
    unknown_exchange_type_ends_connection: bool
    """In later versions it closes only the channel."""
    max_body_bytes: int
    delivery_limit: int | None
    """The limit of a quorum queue that sets none."""
    negative_limit_is_none: bool
    unlimited_returns_to_tail: bool
    """Whether a nacked message moves to the tail of a quorum queue without a delivery limit."""
    failures_count_towards_limit: bool
    """Only failed deliveries count towards the limit, not every return."""
    carries_failures: bool
    """Whether a dead letter keeps its failure count in the next quorum queue."""
    carries_redelivered: bool
    """Whether a message that was returned before it died arrives as redelivered."""
    discards: Discards
    count_headers: CountHeaders
    priorities: Priorities
    policy_expires_wins: bool
    """Whether the policy's `expires` overrides the argument on a quorum queue. In later versions
    the smaller value applies.
    """
    consumer_timeout_per_queue: bool
    consumer_timeout_cancels: bool
    """A timeout cancels the consumer of a quorum queue and leaves the channel open."""
    apply_to_queue_types: bool
    """A policy can be restricted to classic queues or to quorum queues."""
    delayed_retry: bool
    oldest_queue_version: int
    """Of classic queues, as in `x-queue-version`."""
    refusals_name_the_right: bool
    """Whether an access refusal names the missing permission."""
    passive_declare_needs_right: bool
    """Whether a passive declare requires the configure permission."""
    global_qos_refused: bool
    """Whether quorum queues refuse a channel-wide prefetch. Later versions apply it per
    consumer.
    """
    cancel_serves_next: bool
    """Whether cancelling the single active consumer of a classic queue immediately activates the next one.
    Older versions do this only when a message is returned. (There a publish also crashes RabbitMQ's queue
    process, which is not emulated.)
    """
    returns_replies: bool
    """Whether a mandatory direct reply is returned although it was delivered, because it is not
    routed to a queue.
    """
    forged_reply_ends_connection: bool
    """Whether a publish to an invalid address of direct replies closes the connection."""


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
"""All profiles, oldest first."""


def profile_for(version: BrokerVersion) -> Profile:
    """The behaviour of `version`, and that version as its name."""
    known = [profile for profile in PROFILES if profile.version <= version]
    return replace(known[-1] if known else PROFILES[0], version=version)
