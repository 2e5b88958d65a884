"""Format a topology as text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hopback.durations import LONGEST_MS, format_duration
from hopback.text import count_of, printable, size_text
from hopback.topology.delays import is_delay_queue
from hopback.topology.model import QueueType
from hopback.topology.roles import QueueRole, queue_roles
from hopback.topology.wording import plan_in_words, show_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hopback.fields import FieldValue, Headers
    from hopback.topology.model import Binding, Exchange, Policy, Queue, Topology


def write_table(topology: Topology) -> str:
    """Format a topology as text. Control characters in names are escaped."""
    roles = queue_roles(topology)
    plans = []
    for plan in topology.plans:
        plans.append(f"When the handler of {printable(plan.queue)} fails:")
        plans += [f"  {line}" for line in plan_in_words(plan)]
    parts = (
        [printable(topology.name)],
        _section("EXCHANGE", ("TYPE", "OPTIONS"), map(_exchange, topology.exchanges)),
        _section(
            "QUEUE",
            ("TYPE", "ROLE", "ARGUMENTS"),
            (
                (*_queue(queue)[:2], roles[queue.name], _queue(queue)[2])
                for queue in topology.queues
            ),
        ),
        _section("FROM EXCHANGE", ("KEY", "TO"), map(_binding, topology.bindings)),
        _section(
            "POLICY", ("PATTERN", "APPLIES TO", "DEFINITION"), map(_policy, topology.policies)
        ),
        plans,
        _count(topology.queues, roles),
    )
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


_IDLE_BYTES = 135 * 1024
"""Memory used by an idle quorum queue on each node, measured with `benchmarks/idle_queues.py`."""
_IDLE_CORE = 0.0002
"""CPU time used by an idle quorum queue on each node (0.2 ms per second)."""


def _count(queues: Sequence[Queue], roles: Mapping[str, QueueRole]) -> list[str]:
    """Format the number of queues by kind, and the resources used by quorum queues."""
    if not queues:
        return []
    kinds = Counter(
        "delay" if is_delay_queue(one.name) else _KINDS.get(roles[one.name], "work")
        for one in queues
    )
    quorum = sum(one.type is QueueType.QUORUM for one in queues)
    parts = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    lines = [f"{count_of(len(queues), 'queue')}: {parts}"]
    if quorum:
        lines.append(
            f"{count_of(quorum, 'quorum queue')}: idle, about {size_text(quorum * _IDLE_BYTES)} of"
            f" memory and {quorum * _IDLE_CORE:.2%} of a core on each node with a replica"
        )
    return lines


_KINDS = {QueueRole.RETRY: "retry", QueueRole.DEAD_LETTER: "dead-letter"}


def _section(first: str, others: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Format a table with aligned columns."""
    lines = [(first, *others), *rows]
    if len(lines) == 1:
        return []
    widths = [max(len(row[column]) for row in lines) for column in range(len(others) + 1)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in lines
    ]


def _exchange(exchange: Exchange) -> tuple[str, str, str]:
    options = [
        *_flags(exchange),
        *(["internal"] if exchange.internal else []),
        *_arguments(exchange.arguments),
    ]
    return printable(exchange.name), printable(exchange.type), " ".join(options)


def _queue(queue: Queue) -> tuple[str, str, str]:
    flags = [*_flags(queue), *(["exclusive"] if queue.exclusive else [])]
    options = " ".join([*flags, *_arguments(queue.arguments)])
    return printable(queue.name), str(queue.type), options


def _binding(binding: Binding) -> tuple[str, str, str]:
    key = " ".join([printable(binding.routing_key) or "-", *_arguments(binding.arguments)])
    end = "exchange " if binding.to_exchange else ""
    return printable(binding.source), key, end + printable(binding.destination)


def _policy(policy: Policy) -> tuple[str, str, str, str]:
    priority = f" (priority {policy.priority})" if policy.priority else ""
    definition = " ".join(_arguments(policy.definition))
    return (
        printable(policy.name) + priority,
        printable(policy.pattern),
        printable(policy.apply_to),
        definition,
    )


def _flags(item: Exchange | Queue) -> list[str]:
    """Return the flags that are not the default."""
    transient = [] if item.durable else ["transient"]
    return [*transient, *(["auto-delete"] if item.auto_delete else [])]


def _arguments(table: Headers) -> list[str]:
    return [f"{printable(key.removeprefix('x-'))}={_value(key, table[key])}" for key in table]


def _value(key: str, value: FieldValue) -> str:
    is_time = key.removeprefix("x-") in ("message-ttl", "expires")
    if is_time and isinstance(value, int) and 0 <= value <= LONGEST_MS:
        return format_duration(value)
    if isinstance(value, str) and value and " " not in value:
        return printable(value)
    return show_value(value)
