"""FreeFlow, with three retry delays for each domain."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.designs.design import delay_problems, name_problems, refuse
from hopback.durations import parse_duration_ms
from hopback.errors import Problem
from hopback.topology.expand import (
    dead_lettering,
    harden,
    harden_queues,
    retry_queues,
    unique_queues,
)
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue, Topology
from hopback.topology.plan import (
    Count,
    Fact,
    Leave,
    Parking,
    Plan,
    Redrive,
    Return,
    Route,
    Stamp,
    Tier,
)
from hopback.topology.routing import topic_matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_MAIN = "freeflow.events"
_RETRY = "freeflow.events.retry"
_DLX = "freeflow.events.dlx"
_DLQ = "freeflow.events.dlq"
_AUDIT = "audit"

QUEUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "freeflow.users.queue": ("user", "auth"),
        "freeflow.alarms.queue": ("alarm",),
        "freeflow.documents.queue": ("document",),
        "freeflow.workflows.queue": ("workflow",),
        "freeflow.notifications.queue": ("notification",),
        "freeflow.audit.queue": ("audit",),
    }
)
"""The main queues and their domains.

The domains and the binding `domain.*` are documented. The names of the queues and the common queue
of user and auth are taken from other public pages of FreeFlow.
"""

AUDIT_KEYS = ("audit.*",)
"""The documented binding keys of the audit queue. Another public page uses `#`, which matches all
messages.
"""

TIERS_MS: Mapping[str, int] = MappingProxyType({"30s": 30_000, "5m": 300_000, "30m": 1_800_000})
"""The documented delays, with their names in routing keys and queue names."""

_ORIGIN = (
    Stamp("x-original-routing-key", Fact.ORIGIN_ROUTING_KEY, once=True),
    Stamp("x-original-exchange", Fact.ORIGIN_EXCHANGE, once=True),
)


def freeflow(
    *,
    hardened: bool = False,
    queues: Mapping[str, Sequence[str]] = QUEUES,
    tiers_ms: Mapping[str, int] = TIERS_MS,
    audit_keys: Sequence[str] = AUDIT_KEYS,
) -> Topology:
    """The documented "RabbitMQ Retry Topology (TTL + DLX)" of FreeFlow's events.

    A topic exchange feeds a queue for each group of domains by `<domain>.*`. `audit_keys` are the
    binding keys of the audit queue, for example `#` for everything. A failed message is published
    to `freeflow.events.retry` with the key `<domain>.<tier>`, waits 30 s, then 5 min, then 30 min,
    and returns with the key `<domain>.retry`. After the last retry, or if a retry cannot succeed, it
    is rejected into the common dead-letter queue `freeflow.events.dlq`. A header contains its
    original routing key.

    Messages are not lost on the way to a retry queue. In the faithful form (classic queues), the
    broker moves messages back, and into the dead-letter queue, at most once. It can lose some.
    Returning messages go through the shared exchange, so an audit queue bound to `#` receives each
    retry as well. In the hardened form, messages are not lost, and a retry returns directly to its
    queue.
    """
    refuse([*_problems(queues, tiers_ms, audit_keys)], "freeflow")
    faithful = tuple(_plan(name, domains, tiers_ms) for name, domains in queues.items())
    plans = tuple(map(harden, faithful)) if hardened else faithful
    every = (harden_queues(plan) if hardened else _faithful_queues(plan) for plan in plans)
    return Topology(
        name="freeflow",
        exchanges=(
            Exchange(_MAIN, ExchangeType.TOPIC),
            Exchange(_RETRY),
            Exchange(_DLX),
        ),
        queues=unique_queues(queue for family in every for queue in family),
        bindings=(*_bindings(queues, plans, audit_keys), Binding(_DLX, _DLQ, "dlq")),
        plans=plans,
    )


def queues_of(domains: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the queues for a list of domains. The queue of an unknown domain is
    `freeflow.<domain>.queue`.

    Raises:
        ValueError: If a domain is not a single word.
    """
    found: dict[str, tuple[str, ...]] = {}
    known = {domain: queue for queue, served in QUEUES.items() for domain in served}
    for domain in domains:
        if not domain.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"expected domains of one word, got {domain!r}")
        queue = known.get(domain, f"freeflow.{domain}.queue")
        found[queue] = (*found.get(queue, ()), domain)
    return found


def tiers_of(names: Sequence[str]) -> dict[str, int]:
    """Parse a list of delays such as `30s` and `5m`. Raises ValueError if one is invalid or repeated."""
    if len(set(names)) < len(names):
        raise ValueError(f"expected each tier once, got {', '.join(names)}")
    return {name: parse_duration_ms(name) for name in names}


def _plan(queue: str, domains: Sequence[str], tiers_ms: Mapping[str, int]) -> Plan:
    # The retry route depends on the domain of the original routing key. Other messages use the
    # first domain of the queue. Messages return as `<domain>.retry`, which has to match a binding
    # of the queue.
    ways = [(domain, f"{domain}.*") for domain in domains] if len(domains) > 1 else []
    ways.append((domains[0], "#"))
    return Plan(
        queue=queue,
        attempts=len(tiers_ms) + 1,
        tiers=tuple(
            Tier(
                tier,
                delay_ms,
                tuple(
                    Route(_RETRY, f"{domain}.{tier}", f"freeflow.{domain}.retry.{tier}", keys)
                    for domain, keys in ways
                ),
            )
            for tier, delay_ms in tiers_ms.items()
        ),
        leave=Leave.PUBLISH,
        returns=Return.EXCHANGE,
        parking=Parking(_DLQ, Leave.REJECT, _DLX, "dlq"),
        count=Count.HEADER,
        redrive=Redrive("", queue),
        count_header="x-retry-count",
        retry_stamps=_ORIGIN,
    )


def _faithful_queues(plan: Plan) -> Iterator[Queue]:
    yield Queue(plan.queue, arguments=dead_lettering(_DLX, "dlq"))
    for name, delay_ms in retry_queues(plan):
        domain = name.removeprefix("freeflow.").partition(".retry.")[0]
        back = dead_lettering(_MAIN, f"{domain}.retry", ttl_ms=delay_ms)
        yield Queue(name, arguments=back)
    yield Queue(_DLQ)


def _bindings(
    queues: Mapping[str, Sequence[str]], plans: Iterable[Plan], audit_keys: Sequence[str]
) -> Iterator[Binding]:
    for name, domains in queues.items():
        own = (
            audit_keys if domain == _AUDIT else (f"{domain}.*",)
            for domain in dict.fromkeys(domains)
        )
        keys = dict.fromkeys(key for several in own for key in several)
        yield from (Binding(_MAIN, name, key) for key in keys)
    ways = {route.queue: route for plan in plans for tier in plan.tiers for route in tier.routes}
    for route in ways.values():
        yield Binding(_RETRY, route.queue, route.routing_key)


def _problems(
    queues: Mapping[str, Sequence[str]], tiers_ms: Mapping[str, int], audit_keys: Sequence[str]
) -> Iterator[Problem]:
    if not any(topic_matches(key, f"{_AUDIT}.retry") for key in audit_keys):
        # Otherwise retries would not return to the audit queue.
        yield Problem("params.audit", "keys that match audit.retry", repr(",".join(audit_keys)))
    if not queues:
        yield Problem("params.queues", "at least one queue", "none")
    if not tiers_ms:
        yield Problem("params.tiers_ms", "at least one tier", "none")
    for tier, delay_ms in tiers_ms.items():
        yield from delay_problems(f"params.tiers_ms.{tier}", delay_ms)
    seen: set[str] = set()
    for name, domains in queues.items():
        yield from name_problems(f"params.queues.{name}", name)
        if not domains:
            yield Problem(f"params.queues.{name}", "at least one domain", "none")
        for domain in domains:
            if not domain or "." in domain:
                yield Problem(f"params.queues.{name}", "domains of one word", repr(domain))
            if domain in seen:
                yield Problem(f"params.queues.{name}", "each domain once", f"{domain!r} again")
            seen.add(domain)
