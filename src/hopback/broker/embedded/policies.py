"""The policies of a node."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.broker.embedded.settings import policy_for, settings_for
from hopback.topology.policy_pattern import pattern_flaw

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.embedded.profile import Profile
    from hopback.broker.embedded.settings import QueueSettings
    from hopback.fields import Headers
    from hopback.topology.model import Policy

__all__ = ["Policies"]

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
    """Policies and operator policies; setting one takes effect at once."""

    def __init__(self, profile: Profile, on_change: Callable[[], object]) -> None:
        self._profile = profile
        self._on_change = on_change
        self._users: dict[str, Policy] = {}
        self._operators: dict[str, Policy] = {}

    def all(self, *, operator: bool = False) -> tuple[Policy, ...]:
        """The policies that users have set, or the operator policies."""
        return tuple((self._operators if operator else self._users).values())

    def operators(self) -> tuple[Policy, ...]:
        """The policies that operators have set."""
        return tuple(self._operators.values())

    def put(self, policy: Policy, *, operator: bool = False) -> None:
        """Set or replace it; ValueError for what the broker answers with 400."""
        self._check(policy)
        (self._operators if operator else self._users)[policy.name] = policy
        self._on_change()

    def remove(self, name: str, *, operator: bool = False) -> None:
        """Remove it; a missing one is no error."""
        if (self._operators if operator else self._users).pop(name, None) is not None:
            self._on_change()

    def settings(self, queue: str, arguments: Headers) -> QueueSettings:
        """The effective settings of a queue."""
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

    def _check(self, policy: Policy) -> None:
        kinds = {"all", "queues", "exchanges"}
        if self._profile.apply_to_queue_types:
            kinds |= {"classic_queues", "quorum_queues", "streams"}
        if policy.apply_to not in kinds:
            raise ValueError(
                f"policy {policy.name!r}: expected apply-to to be one of"
                f" {', '.join(sorted(kinds))}, got {policy.apply_to!r}"
            )
        flaw = pattern_flaw(policy.pattern)
        if flaw is not None:
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
