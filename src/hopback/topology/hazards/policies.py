"""Rules about policies, operator policies, shovels and federation."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hopback.topology.effective import effective_policy, find_policies
from hopback.topology.hazards.analysis import Analysis, Parameter, operator_policies, parameters
from hopback.topology.hazards.rule import (
    HazardRule,
    Hit,
    Severity,
    VersionedSeverity,
    errors,
    exchange_place,
    if_limits_can_be_lifted,
    infos,
    list_names,
    policy_place,
    queue_place,
    quote_name,
    warnings,
)
from hopback.topology.model import Exchange, Policy, Queue, QueueType
from hopback.topology.policy_pattern import pattern_flaw, pattern_matches
from hopback.topology.rabbitmq_arguments import APPLY_TO, POLICY_KEYS, QUEUE_ARGUMENTS
from hopback.topology.wording import did_you_mean, show_value
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_ALWAYS = BrokerVersion(0)


def _lower_priority(analysis: Analysis) -> Iterator[Hit]:
    lost: defaultdict[tuple[str, str, frozenset[str]], set[str]] = defaultdict(set)
    for queue in analysis.declared.queues:
        first, *others = find_policies(queue, analysis.declared.policies) or (None,)
        for other in others:
            keys = frozenset(other.definition) - frozenset(first.definition if first else ())
            if first and keys:
                lost[first.name, other.name, keys].add(queue.name)
    for (winner, loser, keys), queues in lost.items():
        yield Hit(
            policy_place(loser),
            f"Both this policy and {quote_name(winner)} match {queue_place(*queues)}. Only"
            f" {quote_name(winner)} applies, because policies do not merge. {list_names(keys)} of"
            f" {quote_name(loser)} has no effect there.",
            f"Add {list_names(keys)} to {quote_name(winner)}, or make the patterns exclude each other.",
        )


def _no_match(analysis: Analysis) -> Iterator[Hit]:
    targets: tuple[Queue | Exchange, ...]
    targets = (*analysis.declared.queues, *analysis.declared.exchanges)
    used = {id(each) for target in targets for each in find_policies(target, _all(analysis))}
    for policy in _all(analysis):
        if (
            id(policy) not in used
            and not pattern_flaw(policy.pattern)
            and policy.apply_to in APPLY_TO
        ):
            yield Hit(
                policy_place(policy.name),
                f"Its pattern {quote_name(policy.pattern)} matches no queue or exchange declared here.",
                "Correct the pattern, or remove the policy if it has no other purpose.",
            )


def _all(analysis: Analysis) -> tuple[Policy, ...]:
    return analysis.declared.policies


def _not_evaluated(analysis: Analysis) -> Iterator[Hit]:
    targets: tuple[Queue | Exchange, ...]
    targets = (*analysis.declared.queues, *analysis.declared.exchanges)
    names = [target.name for target in targets]
    for policy in _all(analysis):
        flaw = pattern_flaw(policy.pattern)
        if flaw is not None and flaw.refused:
            continue
        unknown = [name for name in names if pattern_matches(policy.pattern, name) is None]
        if flaw is None and not unknown:
            continue
        why = flaw or f"it can match {list_names(unknown)} in too many ways"
        yield Hit(
            policy_place(policy.name),
            f"The pattern {quote_name(policy.pattern)} is not evaluated here: {why}. All other checks"
            " ignore this policy.",
            "Use a simpler pattern of text, classes, groups, alternatives and repetition without nesting.",
        )


def _refusals(analysis: Analysis) -> Iterator[Hit]:
    for policy in _all(analysis):
        for problem, severities in _problems(policy):
            yield Hit(
                policy_place(policy.name),
                f"{problem}. The broker refuses the whole policy.",
                "Correct or remove it.",
                severities,
            )


def _problems(policy: Policy) -> Iterator[tuple[str, tuple[VersionedSeverity, ...]]]:
    flaw = pattern_flaw(policy.pattern)
    if flaw is not None and flaw.refused:
        yield (
            f"The pattern {quote_name(policy.pattern)} is not a regular expression: {flaw}",
            errors(),
        )
    if policy.apply_to not in APPLY_TO:
        hint = did_you_mean(policy.apply_to, APPLY_TO)
        yield (
            f"It applies to {quote_name(policy.apply_to)}, which RabbitMQ does not support{hint}",
            errors(),
        )
    elif APPLY_TO[policy.apply_to] > _ALWAYS:
        older = VersionedSeverity(Severity.ERROR, before=APPLY_TO[policy.apply_to])
        yield f"This broker does not know policies for {quote_name(policy.apply_to)}", (older,)
    for key, value in policy.definition.items():
        span = POLICY_KEYS.get(key)
        if span is None:
            yield f"The key {quote_name(key)} is unknown{did_you_mean(key, POLICY_KEYS)}", errors()
            continue
        unknown = []
        if span.since > _ALWAYS:
            unknown.append(VersionedSeverity(Severity.ERROR, before=span.since))
        if span.until is not None:
            unknown.append(VersionedSeverity(Severity.ERROR, since=span.until))
        if unknown:
            yield f"This broker does not know the key {quote_name(key)}", tuple(unknown)
        known = QUEUE_ARGUMENTS.get(f"x-{key}")
        if known is not None and not known.value.allows(value):
            yield f"{quote_name(key)} is {show_value(value)}, expected {known.value}", errors()
        elif key == "delivery-limit" and isinstance(value, int) and value < 0:
            before = errors(before="4.0")
            yield f"{quote_name(key)} is {value}, which RabbitMQ before 4.0 does not accept", before


_FEDERATION = ("federation-upstream", "federation-upstream-set", "federation-upstream-pattern")


def _no_confirm(analysis: Analysis) -> Iterator[Hit]:
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
            "as soon as they are delivered"
            if mode == "no-ack"
            else "before the destination has confirmed them"
        )
        yield Hit(
            f"{kind} {quote_name(link.name)}",
            f"With `ack-mode: {mode}`, messages are removed from the source {when}. Messages in"
            " transit are lost when the connection or one of the brokers fails.",
            "Use `ack-mode: on-confirm`, the default.",
            errors() if mode == "no-ack" else warnings(),
        )


def _shovel_drains(analysis: Analysis) -> Iterator[Hit]:
    """Check for shovels that consume a dead-letter queue or a retry queue."""
    for shovel in parameters(analysis.declared, "shovel"):
        source = shovel.text("src-queue")
        if source is None or source not in analysis.dead_letter_queues | analysis.retry_queues:
            continue
        role = "dead-letter" if source in analysis.dead_letter_queues else "retry"
        target = _destination(shovel)
        # Find the consumed queues the shovel publishes to.
        queue, exchange = shovel.text("dest-queue"), shovel.text("dest-exchange")
        key = shovel.text("dest-exchange-key")
        reached = {queue} if queue is not None else set()
        if queue is None and exchange is not None and key is not None:
            reached = set(analysis.route(exchange, key))
        onward = reached & analysis.mains.keys()
        round_trip = (
            f" Messages that fail again return from {queue_place(*onward)} and circulate forever"
            " without a count."
            if role == "dead-letter" and onward
            else ""
        )
        early = "before their delay is over" if role == "retry" else "regardless of the failure"
        yield Hit(
            f"shovel {quote_name(shovel.name)}",
            f"It moves all messages of the {role} queue {quote_name(source)} to {target}, {early}."
            f"{round_trip}",
            "Remove it, and re-drive messages by a job, which counts them and can be stopped.",
        )


def _shovel_empties(analysis: Analysis) -> Iterator[Hit]:
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
            f"shovel {quote_name(shovel.name)}",
            f"While {_destination(shovel)} refuses messages, the shovel repeatedly returns them to"
            f" the quorum queue {quote_name(source.name)}. After {limit.value} returns the broker"
            f" {removed} them. The queue is empty within seconds.",
            "Give the source no delivery limit"
            + if_limits_can_be_lifted(" (-1, by policy from 4.0 on)", analysis.version)
            + " while the shovel exists.",
            errors(since=since, before="4.3"),
        )


def _destination(shovel: Parameter) -> str:
    queue, exchange = shovel.text("dest-queue"), shovel.text("dest-exchange")
    if queue is not None:
        return queue_place(queue)
    return exchange_place(exchange) if exchange is not None else "its destination"


def _federation(analysis: Analysis) -> Iterator[Hit]:
    """Check for federation policies that match retry queues, dead-letter queues or their exchanges."""
    caught: defaultdict[str, set[str]] = defaultdict(set)
    exchanges: defaultdict[str, set[str]] = defaultdict(set)
    failing = {leg.exchange for leg in analysis.legs.values()}
    for queue in analysis.declared.queues:
        policy = effective_policy(queue, analysis.declared.policies)
        if (
            policy
            and queue.name in analysis.retry_queues | analysis.dead_letter_queues
            and _federates(policy.definition)
        ):
            caught[policy.name].add(queue.name)
    for exchange in analysis.declared.exchanges:
        policy = effective_policy(exchange, analysis.declared.policies)
        if policy and exchange.name in failing and _federates(policy.definition):
            exchanges[policy.name].add(exchange.name)
    for name in caught.keys() | exchanges.keys():
        places = [queue_place(*caught[name])] if caught[name] else []
        places += [f"exchange {list_names(exchanges[name])}"] if exchanges[name] else []
        yield Hit(
            policy_place(name),
            f"It federates {' and '.join(places)}: failed messages move between brokers, return"
            " to consumers of another broker, or are dead letters on several brokers.",
            "Let its pattern leave out retry queues, dead-letter queues and their exchanges.",
        )


def _federates(definition: Mapping[str, object]) -> bool:
    return any(key in definition for key in _FEDERATION)


def _operator_policy(analysis: Analysis) -> Iterator[Hit]:
    policies = operator_policies(analysis.declared)
    ruled: defaultdict[str, set[str]] = defaultdict(set)
    for name in analysis.failure_queues:
        policy = effective_policy(analysis.queues[name], policies)
        if policy is not None:
            ruled[policy.name].add(name)
    for policy in policies:
        if ruled[policy.name]:
            yield Hit(
                f"operator policy {quote_name(policy.name)}",
                f"It sets {list_names(policy.definition)} for {queue_place(*ruled[policy.name])}, in"
                " addition to their arguments and policies. The smallest value applies. The application"
                " that declares the queues does not see it. The other findings include its effect.",
                "Check that the operators of the broker intend it for these queues.",
            )


RULES = (
    HazardRule("policy-shadowed", warnings(), _lower_priority),
    HazardRule("policy-unmatched", infos(), _no_match),
    HazardRule("policy-refused", errors(), _refusals),
    HazardRule("policy-pattern-not-evaluated", warnings(), _not_evaluated),
    HazardRule("link-unconfirmed", errors(), _no_confirm),
    HazardRule("shovel-drains-failures", warnings(), _shovel_drains),
    HazardRule("shovel-empties-quorum-queue", errors(since="4.0", before="4.3"), _shovel_empties),
    HazardRule("failures-federated", warnings(), _federation),
    HazardRule("operator-policy", infos(), _operator_policy),
)
"""Rules about policies, shovels and federation."""
