"""Examine a live broker: its version, alarms, known problems and topology hazards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from hopback.broker.limits import LiftedLimit, find_lifted_limits
from hopback.errors import ManagementError, ManagementRefused
from hopback.text import count_of
from hopback.topology.check import check
from hopback.topology.effective import effective_topology
from hopback.topology.hazards.rule import Finding, Severity
from hopback.topology.roles import QueueRole, queue_roles
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from hopback.broker.management import (
        Alarm,
        BrokerOverview,
        FeatureFlag,
        Management,
        QueueReading,
    )
    from hopback.topology.model import Topology

    _Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Notice:
    """A finding about the broker, and whether something has to be done about it."""

    text: str
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class _VersionNotice:
    since: BrokerVersion
    before: BrokerVersion
    text: str
    urgent: bool = False


_FIRST = BrokerVersion(0)
_NEVER = BrokerVersion(9999)
_RULES = (
    _VersionNotice(
        _FIRST,
        BrokerVersion(3, 10),
        "Versions before 3.10 have neither message TTL nor at-least-once dead-lettering on quorum "
        "queues, so the hardened designs cannot be declared. Upgrade.",
        urgent=True,
    ),
    _VersionNotice(
        BrokerVersion(3, 13),
        BrokerVersion(3, 13, 3),
        "3.13.0 to 3.13.2 drop dead letters without a cycle and ignore a re-published x-death. "
        "Upgrade to 3.13.3 or later.",
        urgent=True,
    ),
    _VersionNotice(
        _FIRST,
        BrokerVersion(3, 13),
        "An x-death header that a client publishes is interpreted, a malformed one crashes the "
        "queue, and chains of retry queues lose messages: one hop only, and never replay x-death.",
    ),
    _VersionNotice(
        _FIRST,
        BrokerVersion(3, 12, 1),
        "A channel whose first publish reaches a dead leader is nacked forever. Hopback opens a new "
        "channel, other clients may not.",
    ),
    _VersionNotice(
        BrokerVersion(4, 0),
        _NEVER,
        "A quorum queue without an explicit limit removes a message on its 21st return. Some ways of "
        "reading count as a return, before 4.3 all of them: give dead-letter queues an explicit limit "
        "(`hopback topology apply` does).",
    ),
    _VersionNotice(
        BrokerVersion(4, 0),
        _NEVER,
        "An x-death header that a client publishes is ignored: consumers that count attempts by it "
        "start anew whenever a message is re-published.",
    ),
    _VersionNotice(
        BrokerVersion(4, 3),
        _NEVER,
        "A consumer timeout on a quorum queue cancels the consumer and leaves the channel open: "
        "clients that do not watch for the cancel stop consuming silently.",
    ),
)


def version_notices(version: BrokerVersion) -> tuple[Notice, ...]:
    """List the problems of this version."""
    return tuple(
        Notice(rule.text, rule.urgent) for rule in _RULES if rule.since <= version < rule.before
    )


def flag_notices(version: BrokerVersion, disabled: Iterable[str]) -> tuple[Notice, ...]:
    """Describe how disabled feature flags affect dead-lettering."""
    off = set(disabled)
    if "stream_queue" in off and version < BrokerVersion(3, 12):
        return (
            Notice(
                "The feature flag stream_queue is disabled: at-least-once dead-lettering "
                "silently becomes at-most-once. Enable it.",
                urgent=True,
            ),
        )
    return ()


_DOWN = frozenset({"crashed", "down", "minority", "stopped", "terminated"})


@dataclass(frozen=True, slots=True)
class HeldBackWarning:
    """Find messages that at-least-once dead-lettering cannot deliver. Consumers never see them."""

    queue: str
    messages: int
    lag_s: float


@dataclass(frozen=True, slots=True)
class Trouble:
    """A queue with a problem."""

    queue: str
    state: str


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings. Without the management API, only the version and its known problems are
    included.
    """

    address: str
    vhost: str
    version: BrokerVersion
    notices: tuple[Notice, ...]
    overview: BrokerOverview | None = None
    alarms: tuple[Alarm, ...] = ()
    flags: tuple[FeatureFlag, ...] = ()
    queues: int | None = None
    findings: tuple[Finding, ...] = ()
    held_back: tuple[HeldBackWarning, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    lifted: tuple[LiftedLimit, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether none of the findings require immediate action."""
        grave = any(finding.severity is Severity.ERROR for finding in self.findings)
        urgent = any(notice.urgent for notice in self.notices)
        return not (grave or urgent or self.alarms or self.held_back or self.troubles)


async def examine(
    address: str,
    vhost: str,
    version: BrokerVersion,
    management: Management | None,
    *,
    desired: Topology | None = None,
) -> Examination:
    """Examine the broker. `desired` contains the plans of the live queues."""
    if management is None:
        blind = Notice("The management API was not asked: topology, alarms and policies unknown.")
        return Examination(address, vhost, version, (*version_notices(version), blind))
    overview = await management.overview()
    flags = await _ask_or(management.feature_flags(), ())
    readings = await management.queues(vhost)
    live = await management.live_topology(vhost)
    parameters = await _ask_or(management.parameters(vhost), ())
    disabled = (flag.name for flag in flags if not flag.enabled)
    # The live objects, along with their parameters and any failure plans we know about.
    names = {queue.name for queue in live.queues}
    plans = () if desired is None else tuple(one for one in desired.plans if one.queue in names)
    entries = [{**entry, "vhost": None} for entry in parameters]
    return Examination(
        address,
        vhost,
        version,
        (
            *version_notices(version),
            *flag_notices(version, disabled),
            *_late_retries(effective_topology(live, version)),
            *_dead_letters(
                replace(effective_topology(live, version), plans=plans or live.plans), readings
            ),
        ),
        overview,
        await _ask_or(management.alarms(), ()),
        flags,
        len(readings),
        check(replace(live, plans=plans or live.plans, foreign={"parameters": entries}), version),
        tuple(
            HeldBackWarning(reading.queue.name, reading.counts.held_back, reading.counts.lag_s)
            for reading in readings
            if reading.counts.held_back
        ),
        tuple(
            Trouble(reading.queue.name, reading.state)
            for reading in readings
            if reading.state in _DOWN
        ),
        find_lifted_limits(live.policies),
    )


async def _ask_or(asked: Awaitable[_Answer], otherwise: _Answer) -> _Answer:
    """Return the response, or a default if the user has no permission or the endpoint does not
    exist.
    """
    try:
        return await asked
    except ManagementRefused:
        return otherwise
    except ManagementError as error:
        if error.status == 404:
            return otherwise
        raise


def _dead_letters(live: Topology, readings: Iterable[QueueReading]) -> tuple[Notice, ...]:
    """Report the number of dead letters. This is not a problem, but operators want to know."""
    roles = queue_roles(live)
    found = {
        one.queue.name: one.counts.messages
        for one in readings
        if one.counts.messages and roles.get(one.queue.name) is QueueRole.DEAD_LETTER
    }
    if not found:
        return ()
    fullest = max(found, key=lambda name: (found[name], name))
    where = f"{count_of(found[fullest])} in {fullest}"
    if len(found) > 1:
        queues = count_of(len(found), "dead-letter queue")
        where = f"{count_of(sum(found.values()))} in {queues}, most of them ({found[fullest]:,}) in {fullest}"
    return (Notice(f"Dead letters: {where}, see `hopback dlq ls`."),)


def _late_retries(live: Topology) -> tuple[Notice, ...]:
    """Report retries that may be late. Only the files of the node contain the time, so it is not
    known.
    """
    found = [
        queue.name
        for queue in live.queues
        if queue.arguments.get("x-dead-letter-strategy") == "at-least-once"
    ]
    if not found:
        return ()
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (
        Notice(
            f"{len(found)} queues dead-letter at least once ({', '.join(found[:3])}{more}). If the next"
            " queue does not accept a message at once (it is full, or the broker is starting), the broker"
            " tries again after `dead_letter_worker_publisher_confirm_timeout`, 180 s by default. Retries"
            " can be three minutes late, and no queue length includes them. To shorten the time, write"
            " [{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 10000}]}]. to the file"
            " advanced.config of each node and restart it. If the value is shorter than a confirm takes,"
            " messages are duplicated."
        ),
    )
