"""Rules about policies: one alone applies to a queue, and a broker refuses what it cannot read."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hopback.topology.effective import matching_policies
from hopback.topology.hazards.phrases import listed, named, policy_place, queue_place
from hopback.topology.hazards.rule import (
    HazardRule,
    Hit,
    Severity,
    VersionedSeverity,
    errors,
    infos,
    warnings,
)
from hopback.topology.policy_pattern import pattern_flaw, pattern_matches
from hopback.topology.rabbitmq_arguments import APPLY_TO, POLICY_KEYS, QUEUE_ARGUMENTS
from hopback.topology.wording import did_you_mean, shown
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.fields import FieldValue
    from hopback.topology.hazards.analysis import Analysis
    from hopback.topology.model import Exchange, Policy, Queue

__all__ = ["RULES"]

_ALWAYS = BrokerVersion(0)


def _shadowed(analysis: Analysis) -> Iterator[Hit]:
    lost: defaultdict[tuple[str, str, frozenset[str]], set[str]] = defaultdict(set)
    for queue in analysis.declared.queues:
        first, *others = matching_policies(queue, analysis.declared.policies) or (None,)
        for other in others:
            keys = frozenset(other.definition) - frozenset(first.definition if first else ())
            if first and keys:
                lost[first.name, other.name, keys].add(queue.name)
    for (winner, loser, keys), queues in lost.items():
        yield Hit(
            policy_place(loser),
            f"Both this policy and {named(winner)} match {queue_place(*queues)}; only"
            f" {named(winner)} applies, because policies do not merge. {listed(keys)} of"
            f" {named(loser)} has no effect there.",
            f"Add {listed(keys)} to {named(winner)}, or make the patterns exclude each other.",
        )


def _unmatched(analysis: Analysis) -> Iterator[Hit]:
    targets: tuple[Queue | Exchange, ...]
    targets = (*analysis.declared.queues, *analysis.declared.exchanges)
    used = {id(each) for target in targets for each in matching_policies(target, _all(analysis))}
    for policy in _all(analysis):
        if (
            id(policy) not in used
            and not pattern_flaw(policy.pattern)
            and policy.apply_to in APPLY_TO
        ):
            yield Hit(
                policy_place(policy.name),
                f"Its pattern {named(policy.pattern)} matches no queue or exchange declared here.",
                "Correct the pattern, or remove the policy if nothing else needs it.",
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
        why = flaw or f"it takes too many steps for {listed(unknown)}"
        yield Hit(
            policy_place(policy.name),
            f"The pattern {named(policy.pattern)} is not evaluated here: {why}. The policy is"
            " taken to apply to nothing, so what it sets is unknown to every other check.",
            "Write a plainer pattern: text, classes, groups, alternatives and repetition.",
        )


def _refused(analysis: Analysis) -> Iterator[Hit]:
    for policy in _all(analysis):
        for problem, severities in _problems(policy):
            yield Hit(
                policy_place(policy.name),
                f"{problem}. The broker refuses the whole policy, and nothing that it should set"
                " is set.",
                "Correct or remove it.",
                severities,
            )


def _problems(policy: Policy) -> Iterator[tuple[str, tuple[VersionedSeverity, ...]]]:
    flaw = pattern_flaw(policy.pattern)
    if flaw is not None and flaw.refused:
        yield f"The pattern {named(policy.pattern)} is no regular expression: {flaw}", errors()
    if policy.apply_to not in APPLY_TO:
        hint = did_you_mean(policy.apply_to, APPLY_TO)
        yield f"It applies to {named(policy.apply_to)}, which no broker knows{hint}", errors()
    elif APPLY_TO[policy.apply_to] > _ALWAYS:
        older = VersionedSeverity(Severity.ERROR, before=APPLY_TO[policy.apply_to])
        yield f"This broker does not know policies for {named(policy.apply_to)}", (older,)
    for key, value in policy.definition.items():
        yield from _key_problems(key, value)


def _key_problems(
    key: str, value: FieldValue
) -> Iterator[tuple[str, tuple[VersionedSeverity, ...]]]:
    span = POLICY_KEYS.get(key)
    if span is None:
        yield f"The key {named(key)} is unknown{did_you_mean(key, POLICY_KEYS)}", errors()
        return
    unknown = []
    if span.since > _ALWAYS:
        unknown.append(VersionedSeverity(Severity.ERROR, before=span.since))
    if span.until is not None:
        unknown.append(VersionedSeverity(Severity.ERROR, since=span.until))
    if unknown:
        yield f"This broker does not know the key {named(key)}", tuple(unknown)
    known = QUEUE_ARGUMENTS.get(f"x-{key}")
    if known is not None and not known.value.allows(value):
        yield f"{named(key)} is {shown(value)}, expected {known.value}", errors()
    elif key == "delivery-limit" and isinstance(value, int) and value < 0:
        older = errors(before="4.0")
        yield f"{named(key)} is {value}, which brokers before 4.0 do not take", older


RULES = (
    HazardRule("policy-shadowed", warnings(), _shadowed),
    HazardRule("policy-unmatched", infos(), _unmatched),
    HazardRule("policy-refused", errors(), _refused),
    HazardRule("policy-pattern-not-evaluated", warnings(), _not_evaluated),
)
"""What can be wrong with policies."""
