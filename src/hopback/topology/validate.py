"""Validate topologies.

This module finds objects that RabbitMQ would reject, and references to undeclared objects. `check`
finds configurations that can lose messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from hopback.durations import LONGEST_MS, format_duration
from hopback.errors import Problem
from hopback.headers.names import is_protected
from hopback.topology.arguments import INTEGER_RANGES, fits_decimal
from hopback.topology.model import Binding, Exchange, Policy, Queue, QueueType, Topology
from hopback.topology.rabbitmq_arguments import APPLY_TO, ARGUMENTS_OF, QUEUE_ARGUMENTS
from hopback.topology.wording import did_you_mean, either, path_to, show_value

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers
    from hopback.topology.plan import Plan, Stamp, Tier


_LONGEST_HEADER_BYTES = 255  # maximum length of a key in an AMQP 0-9-1 table


def plan_problems(plan: Plan, topology: Topology) -> Iterator[Problem]:
    """Yield the problems of a plan."""
    path = path_to("plans", plan.queue)
    yield from _queue_known(path, plan.queue, topology)
    if plan.attempts < 1:
        yield Problem(f"{path}.attempts", "at least 1", str(plan.attempts))
    if plan.attempts > 1 and not plan.tiers:
        yield Problem(f"{path}.tiers", f"a tier to wait in before attempt {plan.attempts}", "none")
    yield from _tiers(path, plan, topology)
    yield from _queue_known(f"{path}.parking.queue", plan.parking.queue, topology)
    yield from _exchange_known(f"{path}.parking.exchange", plan.parking.exchange, topology)
    yield from _exchange_known(f"{path}.redrive.exchange", plan.redrive.exchange, topology)
    if plan.parking.queue == plan.queue:
        yield Problem(f"{path}.parking.queue", "a queue other than its own", show_value(plan.queue))
    if plan.snooze is not None:
        wait, queue = plan.snooze, topology.queue(plan.queue)
        if not 0 <= wait.min_ms <= wait.max_ms <= LONGEST_MS:
            found = f"{show_value(wait.min_ms)} to {show_value(wait.max_ms)} ms"
            yield Problem(f"{path}.snooze", "a shortest and a longest wait, in that order", found)
        if queue is not None and queue.type is not QueueType.CLASSIC:
            counts = "other types count each requeue and eventually delete the message"
            yield Problem(f"{path}.snooze", f"a classic queue ({counts})", str(queue.type))
    if plan.count_header is not None:
        yield from _header(f"{path}.count_header", plan.count_header)
        if is_protected(plan.count_header):
            expected = "a header name that neither Hopback nor RabbitMQ uses"
            yield Problem(f"{path}.count_header", expected, show_value(plan.count_header))
    yield from _stamps(f"{path}.retry_stamps", plan.retry_stamps)
    yield from _stamps(f"{path}.park_stamps", plan.park_stamps)


def _tiers(path: str, plan: Plan, topology: Topology) -> Iterator[Problem]:
    before: Tier | None = None
    for at, tier in enumerate(plan.tiers):
        here = path_to(f"{path}.tiers", at)
        wait = f"{show_value(tier.delay_ms)} ms"
        if not 0 <= tier.delay_ms <= LONGEST_MS:
            yield Problem(f"{here}.delay", f"0 to {LONGEST_MS} ms (ten years)", wait)
        elif before is not None and 0 <= tier.delay_ms < before.delay_ms <= LONGEST_MS:
            least = format_duration(before.delay_ms)
            longer = f"a delay no shorter than the tier before it ({least})"
            yield Problem(f"{here}.delay", longer, format_duration(tier.delay_ms))
        if not tier.routes:
            yield Problem(f"{here}.routes", "at least one route into a retry queue", "none")
        for number, route in enumerate(tier.routes):
            step = path_to(f"{here}.routes", number)
            yield from _queue_known(f"{step}.queue", route.queue, topology)
            yield from _exchange_known(f"{step}.exchange", route.exchange, topology)
        before = tier
    # The same tier may be used more than once.
    different = [tier for at, tier in enumerate(plan.tiers) if tier not in plan.tiers[:at]]
    names = [tier.name for tier in different]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(f"{path}.tiers", "a different name for each tier", show_value(name))


def _stamps(path: str, stamps: tuple[Stamp, ...]) -> Iterator[Problem]:
    for at, stamp in enumerate(stamps):
        yield from _header(f"{path_to(path, at)}.header", stamp.header)


def _header(path: str, name: str) -> Iterator[Problem]:
    size = len(name.encode(errors="surrogatepass"))
    if not 1 <= size <= _LONGEST_HEADER_BYTES:
        yield Problem(
            path, f"a header name of 1 to {_LONGEST_HEADER_BYTES} bytes", show_value(name)
        )


def _queue_known(path: str, name: str, topology: Topology) -> Iterator[Problem]:
    if topology.queue(name) is None:
        hint = did_you_mean(name, [queue.name for queue in topology.queues])
        yield Problem(path, "the name of a declared queue", show_value(name) + hint)


def _exchange_known(path: str, name: str, topology: Topology) -> Iterator[Problem]:
    if name and not name.startswith("amq.") and topology.exchange(name) is None:
        hint = did_you_mean(name, [exchange.name for exchange in topology.exchanges])
        known = 'the name of a declared exchange, or "" for the default exchange'
        yield Problem(path, known, show_value(name) + hint)


LONGEST_NAME_BYTES = 255
"""Maximum length of a name, routing key or table key in AMQP 0-9-1."""

_RESERVED = "amq."


def problems(
    topology: Topology, *, binding_paths: Sequence[str] | None = None
) -> tuple[Problem, ...]:
    """Return all problems of a topology.

    `binding_paths` contains the path of each binding in the file. It is used in error messages.
    """
    paths = binding_paths or [path_to("bindings", at) for at, _ in enumerate(topology.bindings)]
    unreserved = f"a name that does not begin with {_RESERVED} (RabbitMQ reserves those)"
    return (
        *_text("name", topology.name),
        *broker_problems(topology, binding_paths=paths),
        *_duplicates(topology),
        *(
            Problem(path_to(section, item.name), unreserved, show_value(item.name))
            for section, objects in (("exchanges", topology.exchanges), ("queues", topology.queues))
            for item in objects
            if item.name.startswith(_RESERVED)
        ),
        *_unknown_ends(topology, paths),
        *_unconsumed(topology),
        *(problem for plan in topology.plans for problem in plan_problems(plan, topology)),
    )


def broker_problems(
    topology: Topology, *, binding_paths: Sequence[str] | None = None
) -> tuple[Problem, ...]:
    """Return the problems that make RabbitMQ reject the topology.

    A topology that was read from a broker is only checked for these.
    """
    paths = binding_paths or [path_to("bindings", at) for at, _ in enumerate(topology.bindings)]
    return (
        *(found for exchange in topology.exchanges for found in _exchange(exchange)),
        *(found for queue in topology.queues for found in _queue(queue)),
        *(
            found
            for path, binding in zip(paths, topology.bindings, strict=True)
            for found in _binding(path, binding)
        ),
        *(found for policy in topology.policies for found in _policy(policy)),
        *_clashes("exchanges", topology.exchanges),
        *_clashes("queues", topology.queues),
        *_clashes("policies", topology.policies),
    )


def _exchange(exchange: Exchange) -> Iterator[Problem]:
    path = path_to("exchanges", exchange.name)
    yield from _text(path, exchange.name)
    yield from _text(f"{path}.type", exchange.type)
    yield from _table(f"{path}.arguments", exchange.arguments)
    alternate = exchange.arguments.get("alternate-exchange", "")
    if not isinstance(alternate, str):
        yield Problem(f"{path}.arguments.alternate-exchange", "text", show_value(alternate))


def _queue(queue: Queue) -> Iterator[Problem]:
    path = path_to("queues", queue.name)
    yield from _text(path, queue.name)
    # Quorum queues and streams cannot be exclusive or transient.
    for name, found, expected in (
        ("durable", queue.durable, True),
        ("exclusive", queue.exclusive, False),
        ("auto_delete", queue.auto_delete, False),
    ):
        if found is not expected and queue.type is not QueueType.CLASSIC:
            wanted = f"{show_value(expected)} for a {queue.type} queue"
            yield Problem(f"{path}.{name}", wanted, show_value(found))
    yield from _table(f"{path}.arguments", queue.arguments)
    for name, value in queue.arguments.items():
        place, rule = path_to(f"{path}.arguments", name), QUEUE_ARGUMENTS.get(name)
        if name == "x-queue-type":
            yield Problem(
                place, "no such argument, because `type` sets the queue type", show_value(value)
            )
        elif rule is None:
            continue
        elif name not in ARGUMENTS_OF[queue.type]:
            having = either(kind for kind in QueueType if name in ARGUMENTS_OF[kind])
            yield Problem(place, f"a queue of type {having} for this argument", str(queue.type))
        elif not rule.value.allows(value):
            yield Problem(place, str(rule.value), show_value(value))
        elif (
            name == "x-dead-letter-routing-key" and "x-dead-letter-exchange" not in queue.arguments
        ):
            yield Problem(place, "x-dead-letter-exchange to be set as well", "none")


def _binding(path: str, binding: Binding) -> Iterator[Problem]:
    if not binding.source:
        yield Problem(
            f"{path}.exchange",
            "a named exchange (the default exchange reaches every queue by its name already)",
            '""',
        )
    yield from _text(f"{path}.exchange", binding.source or "-")
    yield from _text(f"{path}.{_end(binding)}", binding.destination)
    yield from _text(f"{path}.key", binding.routing_key or "-")
    yield from _table(f"{path}.arguments", binding.arguments)


def _policy(policy: Policy) -> Iterator[Problem]:
    path = path_to("policies", policy.name)
    yield from _text(path, policy.name)
    yield from _text(f"{path}.pattern", policy.pattern or "-", longest=4096)
    yield from _table(f"{path}.definition", policy.definition)
    if not policy.definition:
        yield Problem(f"{path}.definition", "at least one key", "none")
    if policy.apply_to not in APPLY_TO:
        hint = did_you_mean(policy.apply_to, APPLY_TO)
        yield Problem(f"{path}.apply_to", either(APPLY_TO), show_value(policy.apply_to) + hint)
    for name, value in policy.definition.items():
        rule = QUEUE_ARGUMENTS.get(f"x-{name}")
        if rule is not None and not rule.value.allows(value):
            yield Problem(path_to(f"{path}.definition", name), str(rule.value), show_value(value))


def _text(path: str, text: str, *, longest: int = LONGEST_NAME_BYTES) -> Iterator[Problem]:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        yield Problem(path, "text that can be written as UTF-8", show_value(text))
        return
    if not 1 <= size <= longest:
        yield Problem(path, f"1 to {longest} bytes", f"{size} bytes" if size else '""')


def _table(path: str, table: Headers) -> Iterator[Problem]:
    for key, value in table.items():
        yield from _text(path_to(path, key), key)
        yield from _value(path_to(path, key), value)


def _value(path: str, value: FieldValue) -> Iterator[Problem]:
    """Check that a value can be encoded in an AMQP table."""
    low, high = INTEGER_RANGES.get(type(value), (None, None))
    match value:
        case bool() | float() | bytes() | None:
            return
        case int() if low is not None and high is not None:
            if not low <= value <= high:
                yield Problem(path, f"a whole number from {low} to {high}", show_value(value))
        case str():
            yield from _text(path, value or "-", longest=2**31)
        case Decimal():
            if not fits_decimal(value):
                yield Problem(path, "a decimal of 32 bits and 255 places at most", str(value))
        case Mapping():
            yield from _table(path, value)
        case tuple():
            for at, item in enumerate(value):
                yield from _value(path_to(path, at), item)
        case _:
            yield Problem(path, "an AMQP value", show_value(value))


def _clashes(section: str, objects: Iterable[Exchange | Queue | Policy]) -> Iterator[Problem]:
    first: dict[str, Exchange | Queue | Policy] = {}
    for item in objects:
        if first.setdefault(item.name, item) != item:
            path = path_to(section, item.name)
            yield Problem(path, "one declaration of this name", "two that differ")


def _duplicates(topology: Topology) -> Iterator[Problem]:
    """Check for objects that are declared twice in the same way. A file must not contain any."""
    sections: tuple[tuple[str, Iterable[Exchange | Queue | Policy]], ...] = (
        ("exchanges", topology.exchanges),
        ("queues", topology.queues),
        ("policies", topology.policies),
    )
    for section, objects in sections:
        first: dict[str, Exchange | Queue | Policy] = {}
        for item in objects:
            known = first.setdefault(item.name, item)
            if known is not item and known == item:
                yield Problem(path_to(section, item.name), "one declaration of this name", "two")
    names = [plan.queue for plan in topology.plans]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(path_to("plans", name), "one plan for this queue", str(names.count(name)))


def _unconsumed(topology: Topology) -> Iterator[Problem]:
    for name in sorted(topology.unconsumed):
        path = f"{path_to('queues', name)}.consumers"
        if topology.queue(name) is None:
            yield Problem(path, "a declared queue", "none of this name")
        elif topology.plan(name) is not None:
            yield Problem(path, "no failure plan for a queue without consumers", "one")


def _unknown_ends(topology: Topology, paths: Sequence[str]) -> Iterator[Problem]:
    """Check for bindings of undeclared objects."""
    exchanges = {exchange.name for exchange in topology.exchanges}
    queues = {queue.name for queue in topology.queues}
    for path, binding in zip(paths, topology.bindings, strict=True):
        yield from _unknown(f"{path}.exchange", "exchange", binding.source, exchanges)
        kind, known = ("exchange", exchanges) if binding.to_exchange else ("queue", queues)
        yield from _unknown(f"{path}.{_end(binding)}", kind, binding.destination, known)


def _unknown(path: str, kind: str, name: str, known: set[str]) -> Iterator[Problem]:
    own = kind == "exchange" and name.startswith(_RESERVED)
    if name and name not in known and not own:
        hint = did_you_mean(name, sorted(known))
        yield Problem(path, f"the name of a declared {kind}", show_value(name) + hint)


def _end(binding: Binding) -> str:
    return "to_exchange" if binding.to_exchange else "queue"
