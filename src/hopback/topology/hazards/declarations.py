"""Rules about names and arguments."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeAlias

from hopback.topology.hazards.rule import (
    HazardRule,
    Hit,
    Severity,
    VersionedSeverity,
    errors,
    exchange_place,
    infos,
    list_names,
    plan_place,
    queue_place,
    quote_name,
    warnings,
)
from hopback.topology.model import Queue, QueueType
from hopback.topology.rabbitmq_arguments import QUEUE_ARGUMENTS
from hopback.topology.routing import PREDECLARED
from hopback.topology.wording import did_you_mean, show_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.hazards.analysis import Analysis

_LONGEST_BYTES = 255  # maximum length of a name in AMQP 0-9-1
_GENERATED = "amq.gen"


def _clashes(analysis: Analysis) -> Iterator[Hit]:
    topology = analysis.declared
    for names, place in (
        ([each.name for each in topology.queues], queue_place),
        ([each.name for each in topology.exchanges], exchange_place),
        ([each.queue for each in topology.plans], plan_place),
    ):
        for name, count in Counter(names).items():
            if count == 1:
                continue
            yield Hit(
                place(name),
                "It is declared more than once. The order decides which declaration is used, and a"
                " broker refuses the second one if it differs.",
                "Keep one of them.",
            )
    # A retry queue cannot have another role, because all messages leave it after the TTL.
    parking = {plan.parking.queue for plan in analysis.plans.values()}
    for name in sorted(analysis.users.keys() & (parking | analysis.plans.keys())):
        other = "a consumed queue" if name in analysis.plans else "a dead-letter queue"
        yield Hit(
            queue_place(name),
            f"This retry queue is also {other}. Its messages are sent back after the delay, even if"
            " they are parked or waiting for a consumer.",
            "Give the retry queue a different name.",
        )


def _unusable(analysis: Analysis) -> Iterator[Hit]:
    queues = [each.name for each in analysis.declared.queues]
    exchanges = [each.name for each in analysis.declared.exchanges]
    born = {exchange.name for exchange in PREDECLARED}
    for name in queues:
        if not name.startswith(_GENERATED):
            yield from _bad_name(name, queue_place(name))
    for name in exchanges:
        if name not in born:
            yield from _bad_name(name, exchange_place(name))


def _bad_name(name: str, place: str) -> Iterator[Hit]:
    if not name:
        problem = "An empty name means the default exchange, or asks the broker to generate a name"
    elif name.startswith("amq."):
        problem = "Names that begin with `amq.` are reserved, and the broker refuses this one"
    elif len(name.encode(errors="replace")) > _LONGEST_BYTES:
        problem = f"The name is longer than {_LONGEST_BYTES} bytes, which AMQP does not allow"
    else:
        return
    yield Hit(place, f"{problem}.", "Choose another name.")


def _similar(analysis: Analysis) -> Iterator[Hit]:
    alike: defaultdict[str, set[str]] = defaultdict(set)
    for name in analysis.queues:
        alike[name.strip().casefold()].add(name)
    for names in alike.values():
        if len(names) > 1:
            yield Hit(
                queue_place(*names),
                f"{list_names(names)} are different queues, but their names are easily confused.",
                "If they are meant to be the same queue, use one spelling.",
            )


_Severities: TypeAlias = "tuple[VersionedSeverity, ...]"

# Arguments without an effect on the behaviour of a queue.
_HARMLESS = frozenset({"x-queue-master-locator"})
_EXCHANGE_ARGUMENTS = ("alternate-exchange", "x-delayed-type")


def _no_effect(analysis: Analysis) -> Iterator[Hit]:
    for queue in analysis.declared.queues:
        for name in queue.arguments:
            known = QUEUE_ARGUMENTS.get(name)
            if known is None:
                if name in _HARMLESS:
                    continue
                hint = did_you_mean(name, QUEUE_ARGUMENTS)
                yield _without_effect(queue_place(queue.name), name, hint, warnings())
            elif name == "x-queue-mode" and queue.type is QueueType.CLASSIC:
                later = (VersionedSeverity.of(Severity.INFO, "3.12"),)
                yield _without_effect(queue_place(queue.name), name, "", later)
            elif known.ignored_before is not None and queue.type in known.types:
                older = (VersionedSeverity(Severity.WARNING, before=known.ignored_before),)
                yield _without_effect(queue_place(queue.name), name, "", older)
    for exchange in analysis.declared.exchanges:
        for name in exchange.arguments:
            hint = did_you_mean(name, _EXCHANGE_ARGUMENTS)
            # Plugins may use other arguments, so only report likely typos.
            if name not in _EXCHANGE_ARGUMENTS and hint:
                yield _without_effect(exchange_place(exchange.name), name, hint, warnings())


def _without_effect(place: str, name: str, hint: str, severities: _Severities) -> Hit:
    return Hit(
        place,
        f"The argument {quote_name(name)} is accepted and has no effect{hint}. The broker does not"
        " report this.",
        "Correct or remove it, or use a version of RabbitMQ that supports it.",
        severities,
    )


def _refusals(analysis: Analysis) -> Iterator[Hit]:
    for queue in analysis.declared.queues:
        for problem, severities in _problems(queue):
            yield Hit(
                queue_place(queue.name),
                f"{problem}. The broker refuses the declaration and closes the channel, so the"
                " queue is not created.",
                "Correct or remove it.",
                severities,
            )


def _problems(queue: Queue) -> Iterator[tuple[str, _Severities]]:
    for name, value in queue.arguments.items():
        known = QUEUE_ARGUMENTS.get(name)
        if known is None:
            continue
        if queue.type not in known.types:
            yield f"A {queue.type} queue has no argument {quote_name(name)}", errors()
        elif not known.value.allows(value):
            yield f"{quote_name(name)} is {show_value(value)}, expected {known.value}", errors()
    keyed = "x-dead-letter-routing-key" in queue.arguments
    if keyed and "x-dead-letter-exchange" not in queue.arguments:
        yield "`x-dead-letter-routing-key` is set without `x-dead-letter-exchange`", errors()
    # Only rejected by some versions.
    if queue.type is QueueType.CLASSIC:
        for name, refused in (
            ("x-queue-leader-locator", errors(before="3.11")),
            ("x-consumer-timeout", errors(since="4.3")),
        ):
            if name in queue.arguments:
                yield f"A classic queue has no argument `{name}` on this broker", refused
        if queue.arguments.get("x-queue-version") == 1:
            yield "`x-queue-version: 1` no longer exists on this broker", errors(since="4.3")
    for wrong, name in (
        (not queue.durable, "not durable"),
        (queue.exclusive, "exclusive"),
        (queue.auto_delete, "auto-delete"),
    ):
        if wrong and queue.type is not QueueType.CLASSIC:
            yield f"A {queue.type} queue cannot be {name}", errors()


def _overflow(analysis: Analysis) -> Iterator[Hit]:
    for queue in analysis.queues.values():
        asked = queue.arguments.get("x-overflow") == "reject-publish-dlx"
        if asked and queue.type is QueueType.QUORUM:
            yield Hit(
                queue_place(queue.name),
                "A quorum queue accepts `x-overflow: reject-publish-dlx` but does not support it. It"
                " removes its oldest messages instead of refusing new ones.",
                "Use `reject-publish`.",
            )


def _alternate(analysis: Analysis) -> Iterator[Hit]:
    for exchange in analysis.topology.exchanges:
        alternate = exchange.arguments.get("alternate-exchange")
        if isinstance(alternate, str) and alternate not in analysis.exchanges:
            yield Hit(
                exchange_place(exchange.name),
                f"Its alternate exchange {quote_name(alternate)} does not exist. Messages without a"
                " matching binding are returned if they are mandatory and dropped otherwise.",
                "Declare the alternate exchange, or correct the name"
                f"{did_you_mean(alternate, analysis.exchanges)}.",
            )


def _catches_nothing(analysis: Analysis) -> Iterator[Hit]:
    """Check for alternate exchanges that do not lead to a queue."""
    for exchange in analysis.topology.exchanges:
        # Follow the chain of alternate exchanges until it ends or repeats.
        chain = [exchange.name]
        while len(set(chain)) == len(chain):
            last = analysis.exchanges.get(chain[-1])
            alternate = last.arguments.get("alternate-exchange") if last else None
            if not isinstance(alternate, str) or alternate not in analysis.exchanges:
                break
            chain.append(alternate)
        if len(chain) > 1 and not any(_leads_to_a_queue(analysis, name) for name in chain[1:]):
            circle = (
                ", and the alternate exchanges form a cycle" if len(set(chain)) < len(chain) else ""
            )
            yield Hit(
                exchange_place(exchange.name),
                f"Its alternate exchange {quote_name(chain[1])} leads to no queue{circle}. Messages"
                " without a matching binding are returned if they are mandatory and dropped"
                " otherwise.",
                f"Bind a queue to {quote_name(chain[1])}, or remove the alternate exchange.",
            )


def _leads_to_a_queue(analysis: Analysis, name: str) -> bool:
    """Return True if the exchange leads to a queue, directly or through other exchanges."""
    found, waiting = {name}, [name]
    while waiting:
        source = waiting.pop()
        for binding in analysis.topology.bindings:
            if binding.source == source and not binding.to_exchange:
                return True
            if binding.source == source and binding.destination not in found:
                found.add(binding.destination)
                waiting.append(binding.destination)
    return False


def _delay_exchange(analysis: Analysis) -> Iterator[Hit]:
    for exchange in analysis.topology.exchanges:
        if exchange.type == "x-delayed-message":
            yield Hit(
                exchange_place(exchange.name),
                "The messages that this exchange delays are stored on one node and not in a queue."
                " They are neither visible nor counted, and are lost with the node or when the"
                " plugin is disabled. Unroutable messages are dropped even if they were published"
                " as mandatory. The plugin is archived.",
                "Use one queue with a time to live for each delay. From 4.3 on quorum queues have"
                " built-in delayed retries.",
            )


RULES = (
    HazardRule("name-clash", errors(), _clashes),
    HazardRule("name-refused", errors(), _unusable),
    HazardRule("names-alike", infos(), _similar),
    HazardRule("argument-ignored", warnings(), _no_effect),
    HazardRule("argument-refused", errors(), _refusals),
    HazardRule("overflow-unsupported", warnings(), _overflow),
    HazardRule("alternate-exchange-missing", warnings(), _alternate),
    HazardRule("alternate-exchange-catches-nothing", warnings(), _catches_nothing),
    HazardRule("delayed-exchange", warnings(), _delay_exchange),
)
"""Rules about names and arguments."""
