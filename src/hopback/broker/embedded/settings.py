"""Policies, and the settings of queues that result from arguments and policies."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.topology.policy_pattern import pattern_flaw, pattern_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hopback.broker.embedded.profile import Profile
    from hopback.fields import FieldValue, Headers
    from hopback.topology.model import Policy


_NOTHING: Headers = MappingProxyType({})
_KEYS = frozenset(
    {
        "alternate-exchange",
        "consumer-timeout",
        "dead-letter-exchange",
        "dead-letter-routing-key",
        "dead-letter-strategy",
        "delayed-retry-max",
        "delayed-retry-min",
        "delayed-retry-type",
        "delivery-limit",
        "expires",
        "federation-upstream",
        "federation-upstream-set",
        "ha-mode",
        "ha-params",
        "ha-promote-on-failure",
        "ha-promote-on-shutdown",
        "ha-sync-batch-size",
        "ha-sync-mode",
        "max-age",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "max-length",
        "max-length-bytes",
        "message-ttl",
        "overflow",
        "queue-leader-locator",
        "queue-master-locator",
        "queue-mode",
        "queue-version",
        "stream-max-segment-size-bytes",
        "target-group-size",
    }
)


class Policies:
    """User policies and operator policies. Changes take effect immediately."""

    def __init__(self, profile: Profile, on_change: Callable[[], object]) -> None:
        self._profile = profile
        self._on_change = on_change
        self._users: dict[str, Policy] = {}
        self._operators: dict[str, Policy] = {}

    def all(self, *, operator: bool = False) -> tuple[Policy, ...]:
        """Return the policies set by users, or the operator policies."""
        return tuple((self._operators if operator else self._users).values())

    def operators(self) -> tuple[Policy, ...]:
        """The policies set by operators."""
        return tuple(self._operators.values())

    def put(self, policy: Policy, *, operator: bool = False) -> None:
        """Create or overwrite a policy. Raises ValueError if RabbitMQ would return 400."""
        kinds = {"all", "queues", "exchanges"}
        if self._profile.apply_to_queue_types:
            kinds |= {"classic_queues", "quorum_queues", "streams"}
        if policy.apply_to not in kinds:
            raise ValueError(
                f"policy {policy.name!r}: expected apply-to to be one of"
                f" {', '.join(sorted(kinds))}, got {policy.apply_to!r}"
            )
        flaw = pattern_flaw(policy.pattern)
        if flaw is not None and flaw.refused:
            raise ValueError(
                f"policy {policy.name!r}: expected a regular expression as pattern,"
                f" got {policy.pattern!r}: {flaw}"
            )
        unknown = sorted(set(policy.definition) - _KEYS)
        if unknown:
            raise ValueError(
                f"policy {policy.name!r}: expected keys that the broker knows,"
                f" got {', '.join(unknown)}"
            )
        limit = policy.definition.get("delivery-limit", 0)
        if isinstance(limit, int) and limit < 0 and not self._profile.negative_limit_is_none:
            raise ValueError(
                f"policy {policy.name!r}: expected delivery-limit of 0 or more before"
                f" RabbitMQ 4.0, got {limit}"
            )
        (self._operators if operator else self._users)[policy.name] = policy
        self._on_change()

    def remove(self, name: str, *, operator: bool = False) -> None:
        """Delete a policy. Does nothing if it does not exist."""
        if (self._operators if operator else self._users).pop(name, None) is not None:
            self._on_change()

    def settings(self, queue: str, arguments: Headers) -> QueueSettings:
        quorum = arguments.get("x-queue-type") == "quorum"
        kinds = frozenset({"all", "queues", "quorum_queues" if quorum else "classic_queues"})
        user = policy_for(self._users.values(), queue, kinds)
        operator = policy_for(self._operators.values(), queue, kinds)
        return settings_for(
            arguments,
            _NOTHING if user is None else user.definition,
            _NOTHING if operator is None else operator.definition,
            quorum=quorum,
            profile=self._profile,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The settings that apply to a queue. None means that there is no limit."""

    ttl: float | None = None
    """Maximum time a message may stay in the queue, in seconds."""
    expires: float | None = None
    """Seconds after which an unused queue is deleted."""
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    at_least_once: bool = False
    delivery_limit: int | None = None
    consumer_timeout: float | None = None
    retry_delay: str = "disabled"
    retry_min: float = 0.0
    retry_max: float = 0.0

    @property
    def has_length_limit(self) -> bool:
        """Whether the length of the queue is limited."""
        return self.max_length is not None or self.max_bytes is not None


class _Sources:
    """The argument, the policy and the operator policy of a queue."""

    def __init__(self, arguments: Headers, policy: Headers, operator: Headers) -> None:
        self._arguments = arguments
        self._policies = (policy, operator)

    def first(self, name: str, *, policy_wins: bool = False) -> FieldValue:
        """Return the argument, or the value of the policy if there is none. `policy_wins` reverses
        this order.
        """
        argument = self._arguments.get(f"x-{name}")
        policy = next((each[name] for each in self._policies if name in each), None)
        if policy_wins and policy is not None:
            return policy
        return policy if argument is None else argument

    def text(self, name: str, *, policy_wins: bool = False) -> str | None:
        found = self.first(name, policy_wins=policy_wins)
        return found if isinstance(found, str) else None

    def minimum(self, name: str) -> int | None:
        return self._choose(name, min)

    def limit(self, name: str) -> int | None:
        """Return the smallest value. Negative values mean no limit, so if there is one, the largest
        value is returned.
        """
        return self._choose(name, lambda given: max(given) if min(given) < 0 else min(given))

    def seconds(self, name: str) -> float | None:
        """Return the smallest value, converted from milliseconds to seconds."""
        least = self.minimum(name)
        return None if least is None else least / 1000

    def _choose(self, name: str, choice: Callable[[list[int]], int]) -> int | None:
        given = (self._arguments.get(f"x-{name}"), *(each.get(name) for each in self._policies))
        numbers = [int(value) for value in given if isinstance(value, int)]
        return choice(numbers) if numbers else None


def settings_for(
    arguments: Headers, policy: Headers, operator: Headers, *, quorum: bool, profile: Profile
) -> QueueSettings:
    """Combine the arguments and both policies."""
    sources = _Sources(arguments, policy, operator)
    overflow = sources.text("overflow", policy_wins=quorum) or "drop-head"
    exchange = sources.text("dead-letter-exchange")
    strategy = sources.text("dead-letter-strategy")
    retry_min = sources.seconds("delayed-retry-min")
    retry_max = sources.seconds("delayed-retry-max")
    delays = quorum and profile.delayed_retry and retry_min is not None
    expires = sources.seconds("expires")
    if quorum and profile.policy_expires_wins:
        found = sources.first("expires", policy_wins=True)
        expires = found / 1000 if isinstance(found, int) else None
    delivery_limit = None
    if quorum:
        chosen = sources.limit if profile.negative_limit_is_none else sources.minimum
        delivery_limit = chosen("delivery-limit")
        if delivery_limit is None:
            delivery_limit = profile.delivery_limit
        elif delivery_limit < 0 and profile.negative_limit_is_none:
            delivery_limit = None  # before 4.0, a negative limit drops messages immediately
    return QueueSettings(
        ttl=sources.seconds("message-ttl"),
        expires=expires,
        max_length=sources.minimum("max-length"),
        max_bytes=sources.minimum("max-length-bytes"),
        overflow="drop-head" if quorum and overflow == "reject-publish-dlx" else overflow,
        dead_letter_exchange=exchange,
        dead_letter_routing_key=sources.text("dead-letter-routing-key"),
        at_least_once=quorum
        and exchange is not None
        and strategy == "at-least-once"
        and overflow == "reject-publish",
        delivery_limit=delivery_limit,
        consumer_timeout=(
            sources.seconds("consumer-timeout") if profile.consumer_timeout_per_queue else None
        ),
        retry_delay=(sources.text("delayed-retry-type") or "disabled") if delays else "disabled",
        retry_min=retry_min or 0.0,
        retry_max=retry_max if retry_max is not None else retry_min or 0.0,
    )


def policy_for(policies: Iterable[Policy], name: str, kinds: frozenset[str]) -> Policy | None:
    """Find the matching policy with the highest priority."""
    matching = [
        policy
        for policy in policies
        if policy.apply_to in kinds and pattern_matches(policy.pattern, name)
    ]
    return max(matching, key=lambda policy: (policy.priority, policy.name), default=None)
