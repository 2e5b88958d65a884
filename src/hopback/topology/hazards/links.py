"""Rules about what moves messages beside clients: shovels, federation and operator policies."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hopback.topology.effective import applied_policy
from hopback.topology.hazards.phrases import (
    exchange_place,
    listed,
    named,
    policy_place,
    queue_place,
)
from hopback.topology.hazards.rule import HazardRule, Hit, errors, infos, warnings
from hopback.topology.model import QueueType
from hopback.topology.parameters import operator_policies, parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hopback.topology.hazards.analysis import Analysis
    from hopback.topology.parameters import Parameter

__all__ = ["RULES"]

_FEDERATION = ("federation-upstream", "federation-upstream-set", "federation-upstream-pattern")


def _unconfirmed(analysis: Analysis) -> Iterator[Hit]:
    links = [("shovel", each) for each in parameters(analysis.declared, "shovel")]
    links += [
        ("federation upstream", each)
        for each in parameters(analysis.declared, "federation-upstream")
    ]
    for kind, link in links:
        mode = link.text("ack-mode")
        if mode not in ("no-ack", "on-publish"):
            continue
        when = (
            "as soon as the source hands them over"
            if mode == "no-ack"
            else "before the destination has confirmed them"
        )
        yield Hit(
            f"{kind} {named(link.name)}",
            f"With `ack-mode: {mode}` messages leave the source {when}: what is on its way when"
            " either side or the connection ends is lost.",
            "Use `ack-mode: on-confirm`, the default.",
            errors() if mode == "no-ack" else warnings(),
        )


def _drained(analysis: Analysis) -> Iterator[Hit]:
    """Shovels whose source is a dead-letter or a retry queue."""
    for shovel in parameters(analysis.declared, "shovel"):
        source = shovel.text("src-queue")
        if source is None or source not in analysis.resting | analysis.waiting:
            continue
        what = "dead-letter" if source in analysis.resting else "retry"
        target = _destination(shovel)
        onward = set(_reached(analysis, shovel)) & analysis.mains.keys()
        round_trip = (
            f" What fails again comes back from {queue_place(*onward)} and goes round forever,"
            " and nothing counts it."
            if what == "dead-letter" and onward
            else ""
        )
        early = " before their wait is over" if what == "retry" else " whatever they died of"
        yield Hit(
            f"shovel {named(shovel.name)}",
            f"It takes everything out of the {what} queue {named(source)}{early} and moves it to"
            f" {target}.{round_trip}",
            "Remove it, and re-drive what can be handled again by a job that counts and can be stopped.",
        )


def _emptied(analysis: Analysis) -> Iterator[Hit]:
    for shovel in parameters(analysis.declared, "shovel"):
        source = analysis.queues.get(shovel.text("src-queue") or "")
        if source is None or source.type is not QueueType.QUORUM:
            continue
        limit = analysis.limit(source)
        if limit is None or shovel.text("ack-mode") == "no-ack":
            continue
        since = "4.0" if limit.by_default else ""
        removed = "dead-letters" if source.name in analysis.legs else "deletes"
        yield Hit(
            f"shovel {named(shovel.name)}",
            f"While {_destination(shovel)} refuses messages, the shovel gives them back to the"
            f" quorum queue {named(source.name)} again and again, and after {limit.value} returns"
            f" the broker {removed} them: the queue is empty within seconds.",
            "Give the source no delivery limit (-1, by policy from 4.0 on) while the shovel stands.",
            errors(since=since, before="4.3"),
        )


def _destination(shovel: Parameter) -> str:
    queue, exchange = shovel.text("dest-queue"), shovel.text("dest-exchange")
    if queue is not None:
        return queue_place(queue)
    return exchange_place(exchange) if exchange is not None else "its destination"


def _reached(analysis: Analysis, shovel: Parameter) -> tuple[str, ...]:
    """The queues of this topology that it publishes to, as far as its parameters tell."""
    queue, exchange = shovel.text("dest-queue"), shovel.text("dest-exchange")
    if queue is not None:
        return (queue,) if queue in analysis.queues else ()
    key = shovel.text("dest-exchange-key")
    return () if exchange is None or key is None else analysis.route(exchange, key)


def _federated(analysis: Analysis) -> Iterator[Hit]:
    """Policies of federation that also match what belongs to failures."""
    caught: defaultdict[str, set[str]] = defaultdict(set)
    exchanges: defaultdict[str, set[str]] = defaultdict(set)
    failing = {leg.exchange for leg in analysis.legs.values()}
    for queue in analysis.declared.queues:
        policy = applied_policy(queue, analysis.declared.policies)
        if (
            policy
            and queue.name in analysis.waiting | analysis.resting
            and _federates(policy.definition)
        ):
            caught[policy.name].add(queue.name)
    for exchange in analysis.declared.exchanges:
        policy = applied_policy(exchange, analysis.declared.policies)
        if policy and exchange.name in failing and _federates(policy.definition):
            exchanges[policy.name].add(exchange.name)
    for name in caught.keys() | exchanges.keys():
        places = [queue_place(*caught[name])] if caught[name] else []
        places += [f"exchange {listed(exchanges[name])}"] if exchanges[name] else []
        yield Hit(
            policy_place(name),
            f"It federates {' and '.join(places)}: failed messages move between brokers, come back"
            " to consumers of another broker, or are dead letters on several.",
            "Let its pattern leave out retry queues, dead-letter queues and their exchanges.",
        )


def _federates(definition: Mapping[str, object]) -> bool:
    return any(key in definition for key in _FEDERATION)


def _overruled(analysis: Analysis) -> Iterator[Hit]:
    policies = operator_policies(analysis.declared)
    ruled: defaultdict[str, set[str]] = defaultdict(set)
    for name in analysis.involved:
        policy = applied_policy(analysis.queues[name], policies)
        if policy is not None:
            ruled[policy.name].add(name)
    for policy in policies:
        if ruled[policy.name]:
            yield Hit(
                f"operator policy {named(policy.name)}",
                f"It sets {listed(policy.definition)} for {queue_place(*ruled[policy.name])}, over"
                " their own arguments and policies, where the smaller value wins. Who declares the"
                " queues does not see it. What it does there is judged by the other findings.",
                "Make sure that the operators of the broker mean these queues, too.",
            )


RULES = (
    HazardRule("link-unconfirmed", errors(), _unconfirmed),
    HazardRule("shovel-drains-failures", warnings(), _drained),
    HazardRule("shovel-empties-quorum-queue", errors(since="4.0", before="4.3"), _emptied),
    HazardRule("failures-federated", warnings(), _federated),
    HazardRule("operator-policy", infos(), _overruled),
)
"""What moves or limits messages without any client."""
