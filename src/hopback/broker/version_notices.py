"""What to know of a broker because of its version alone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Notice", "flag_notices", "version_notices"]


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence about the broker, and whether it calls for action."""

    text: str
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class _Rule:
    since: BrokerVersion
    before: BrokerVersion
    text: str
    urgent: bool = False


_FIRST = BrokerVersion(0)
_NEVER = BrokerVersion(9999)
_RULES = (
    _Rule(
        _FIRST,
        BrokerVersion(3, 10),
        "Versions before 3.10 have neither message TTL nor at-least-once dead-lettering on quorum "
        "queues, so the hardened designs cannot be declared. Upgrade.",
        urgent=True,
    ),
    _Rule(
        BrokerVersion(3, 13),
        BrokerVersion(3, 13, 3),
        "3.13.0 to 3.13.2 drop dead letters that are no cycle and ignore a re-published x-death. "
        "Upgrade to 3.13.3 or later.",
        urgent=True,
    ),
    _Rule(
        _FIRST,
        BrokerVersion(3, 13),
        "An x-death header that a client publishes is interpreted, a malformed one crashes the "
        "queue, and chains of retry queues lose messages: one hop only, and never replay x-death.",
    ),
    _Rule(
        _FIRST,
        BrokerVersion(3, 12, 1),
        "A channel whose first publish meets a dead leader is nacked forever; Hopback opens a new "
        "one, other clients may not.",
    ),
    _Rule(
        BrokerVersion(4, 0),
        _NEVER,
        "A quorum queue without a limit of its own removes a message on its 21st return. Looking "
        "counts, too: give dead-letter queues an explicit limit (`hopback topology apply` does).",
    ),
    _Rule(
        BrokerVersion(4, 0),
        _NEVER,
        "An x-death header that a client publishes is ignored: consumers that count attempts by it "
        "start anew whenever a message is re-published.",
    ),
    _Rule(
        BrokerVersion(4, 3),
        _NEVER,
        "A consumer timeout on a quorum queue cancels the consumer and leaves the channel open: "
        "clients that do not watch for the cancel stop consuming silently.",
    ),
)


def version_notices(version: BrokerVersion) -> tuple[Notice, ...]:
    """Everything that holds for this version."""
    return tuple(
        Notice(rule.text, rule.urgent) for rule in _RULES if rule.since <= version < rule.before
    )


def flag_notices(version: BrokerVersion, disabled: Iterable[str]) -> tuple[Notice, ...]:
    """What disabled feature flags mean for dead-lettering."""
    off = set(disabled)
    if "stream_queue" in off and version < BrokerVersion(3, 12):
        return (
            Notice(
                "The feature flag stream_queue is disabled: at-least-once dead-lettering falls back "
                "to at-most-once without a word. Enable it.",
                urgent=True,
            ),
        )
    return ()
