"""Each design has exactly the names, types, arguments, bindings and numbers of its document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.designs import (
    DESIGNS,
    event_bus,
    file_pipeline,
    freeflow,
    raffle,
    ratatoskr,
    recommended,
)
from hopback.designs.event_bus import prefix_of
from hopback.topology.expand import NO_DELIVERY_LIMIT
from hopback.topology.model import QueueType
from hopback.topology.plan import (
    Count,
    Fact,
    Leave,
    LocalWait,
    Parking,
    Plan,
    Redrive,
    Return,
    Route,
    Stamp,
    Tier,
)
from hopback.topology.routing import RoutingTable

if TYPE_CHECKING:
    from hopback.topology.model import Topology


def _exchanges(topology: Topology) -> dict[str, str]:
    return {exchange.name: str(exchange.type) for exchange in topology.exchanges}


def _queues(topology: Topology) -> dict[str, tuple[str, dict[str, object]]]:
    return {queue.name: (str(queue.type), dict(queue.arguments)) for queue in topology.queues}


def _bindings(topology: Topology) -> set[tuple[str, str, str]]:
    return {(one.source, one.routing_key, one.destination) for one in topology.bindings}


_FILE_QUEUES = {
    "q.upload.commands": ("domain.commands", {"commands.upload.#", "commands.file.reprocess.*"}),
    "q.validator": ("domain.events", {"files.uploaded.*"}),
    "q.thumbnail": ("domain.events", {"files.validated.*"}),
    "q.extractor": ("domain.events", {"files.validated.*"}),
    "q.projection": ("domain.events", {"#"}),
    "q.notification": ("domain.events", {"processing.#", "files.rejected.*"}),
    "q.audit": ("domain.events", {"#"}),
}


def test_file_pipeline_topology_is_as_documented() -> None:
    """Seven queues, each with retry and dead-letter exchange and queue, 15 s, classic."""
    topology = file_pipeline()
    exchanges = {"domain.events": "topic", "domain.commands": "topic"}
    queues: dict[str, tuple[str, dict[str, object]]] = {}
    bindings: set[tuple[str, str, str]] = set()
    for name, (source, keys) in _FILE_QUEUES.items():
        exchanges |= {f"retry.{name}": "direct", f"dlq.{name}": "direct"}
        to_retry: dict[str, object] = {
            "x-dead-letter-exchange": f"retry.{name}",
            "x-dead-letter-routing-key": "retry",
        }
        back: dict[str, object] = {
            "x-message-ttl": 15000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": name,
        }
        queues |= {
            name: ("classic", to_retry),
            f"{name}.retry": ("classic", back),
            f"{name}.dlq": ("classic", {}),
        }
        bindings |= {(source, key, name) for key in keys}
        bindings |= {
            (f"retry.{name}", "retry", f"{name}.retry"),
            (f"dlq.{name}", "parking", f"{name}.dlq"),
        }
    assert _exchanges(topology) == exchanges
    assert _queues(topology) == queues
    assert _bindings(topology) == bindings


def test_file_pipeline_plan_is_as_documented() -> None:
    assert file_pipeline().plan("q.audit") == Plan(
        queue="q.audit",
        attempts=3,
        tiers=(Tier("15s", 15000, (Route("retry.q.audit", "retry", "q.audit.retry"),)),),
        leave=Leave.REJECT,
        returns=Return.QUEUE,
        parking=Parking("q.audit.dlq", Leave.PUBLISH, "dlq.q.audit", "parking"),
        count=Count.X_DEATH,
        redrive=Redrive("retry.q.audit", "retry", reset=True),
        park_stamps=(
            Stamp("x-parked-at", Fact.NOW),
            Stamp("x-parked-from-queue", Fact.QUEUE),
            Stamp("x-parked-delivery-attempt", Fact.ATTEMPT),
            Stamp("x-parked-reason", Fact.REASON),
        ),
    )


@pytest.mark.parametrize(
    ("service", "prefix"),
    [("wms-cincout", "wms"), ("xyz-service", "xyz"), ("noprefix", "default"), ("a-b-c", "a")],
)
def test_prefix_is_name_up_to_first_hyphen(service: str, prefix: str) -> None:
    assert prefix_of(service) == prefix


def test_event_bus_topology_is_as_documented() -> None:
    topology = event_bus(["wms-cincout", "noprefix"])
    assert _exchanges(topology) == {
        "wms.main-exchange": "fanout",
        "default.main-exchange": "fanout",
        "wms.retry-exchange.wms-cincout": "direct",
        "default.retry-exchange.noprefix": "direct",
    }
    queues = _queues(topology)
    assert queues["wms.queue.wms-cincout"] == (
        "classic",
        {
            "x-dead-letter-exchange": "wms.retry-exchange.wms-cincout",
            "x-dead-letter-routing-key": "retry",
        },
    )
    assert queues["wms.retry-queue.wms-cincout"] == (
        "classic",
        {
            "x-message-ttl": 5000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "wms.queue.wms-cincout",
        },
    )
    assert queues["wms.dlq.wms-cincout"] == ("classic", {})
    assert queues.keys() == {
        f"{prefix}.{kind}.{service}"
        for prefix, service in (("wms", "wms-cincout"), ("default", "noprefix"))
        for kind in ("queue", "retry-queue", "dlq")
    }
    assert _bindings(topology) == {
        ("wms.main-exchange", "", "wms.queue.wms-cincout"),
        ("wms.retry-exchange.wms-cincout", "retry", "wms.retry-queue.wms-cincout"),
        ("default.main-exchange", "", "default.queue.noprefix"),
        ("default.retry-exchange.noprefix", "retry", "default.retry-queue.noprefix"),
    }


def test_event_bus_plan_is_as_documented() -> None:
    plan = event_bus().plan("wms.queue.wms-orders")
    assert plan == Plan(
        queue="wms.queue.wms-orders",
        attempts=11,
        tiers=(
            Tier(
                "5s",
                5000,
                (Route("wms.retry-exchange.wms-orders", "retry", "wms.retry-queue.wms-orders"),),
            ),
        ),
        leave=Leave.REJECT,
        returns=Return.QUEUE,
        parking=Parking("wms.dlq.wms-orders", Leave.PUBLISH, "", "wms.dlq.wms-orders"),
        count=Count.X_DEATH,
        redrive=Redrive("", "wms.queue.wms-orders", reset=False, keep_deaths=True),
        snooze=LocalWait(500, 2000),
        snooze_exhausts=True,
        park_stamps=(
            Stamp("x-original-queue", Fact.QUEUE),
            Stamp("x-final-status-code", Fact.STATUS),
            Stamp("x-final-error", Fact.ERROR),
            Stamp("x-final-retry-count", Fact.RETRIES),
        ),
    )


_FREEFLOW = {
    "freeflow.users.queue": ("user.*", "auth.*"),
    "freeflow.alarms.queue": ("alarm.*",),
    "freeflow.documents.queue": ("document.*",),
    "freeflow.workflows.queue": ("workflow.*",),
    "freeflow.notifications.queue": ("notification.*",),
    "freeflow.audit.queue": ("audit.*",),
}
_DOMAINS = ("user", "auth", "alarm", "document", "workflow", "notification", "audit")
_TIERS = {"30s": 30_000, "5m": 300_000, "30m": 1_800_000}


def test_freeflow_topology_is_as_documented() -> None:
    topology = freeflow()
    assert _exchanges(topology) == {
        "freeflow.events": "topic",
        "freeflow.events.retry": "direct",
        "freeflow.events.dlx": "direct",
    }
    parks = {
        "x-dead-letter-exchange": "freeflow.events.dlx",
        "x-dead-letter-routing-key": "dlq",
    }
    waits: dict[str, tuple[str, dict[str, object]]] = {
        f"freeflow.{domain}.retry.{tier}": (
            "classic",
            {
                "x-message-ttl": delay_ms,
                "x-dead-letter-exchange": "freeflow.events",
                "x-dead-letter-routing-key": f"{domain}.retry",
            },
        )
        for domain in _DOMAINS
        for tier, delay_ms in _TIERS.items()
    }
    assert len(waits) == 21
    mains = dict.fromkeys(_FREEFLOW, ("classic", parks))
    assert _queues(topology) == {**mains, **waits, "freeflow.events.dlq": ("classic", {})}
    assert _bindings(topology) == {
        *(("freeflow.events", key, name) for name, keys in _FREEFLOW.items() for key in keys),
        *(
            ("freeflow.events.retry", f"{domain}.{tier}", f"freeflow.{domain}.retry.{tier}")
            for domain in _DOMAINS
            for tier in _TIERS
        ),
        ("freeflow.events.dlx", "dlq", "freeflow.events.dlq"),
    }


def test_freeflow_audit_option_binds_everything() -> None:
    by_document, recording = freeflow(), freeflow(audit_keys=("#",))
    own = {("freeflow.events", "audit.*", "freeflow.audit.queue")}
    everything = {("freeflow.events", "#", "freeflow.audit.queue")}
    assert _bindings(recording) == _bindings(by_document) - own | everything
    assert (recording.queues, recording.plans) == (by_document.queues, by_document.plans)


def test_freeflow_users_queue_waits_in_its_domain() -> None:
    plan = freeflow().plan("freeflow.users.queue")
    assert plan is not None
    assert [tier.name for tier in plan.tiers] == ["30s", "5m", "30m"]
    assert plan.tiers[1].routes == (
        Route("freeflow.events.retry", "user.5m", "freeflow.user.retry.5m", "user.*"),
        Route("freeflow.events.retry", "auth.5m", "freeflow.auth.retry.5m", "auth.*"),
        Route("freeflow.events.retry", "user.5m", "freeflow.user.retry.5m", "#"),
    )


def test_freeflow_plan_is_as_documented() -> None:
    plan = freeflow().plan("freeflow.audit.queue")
    assert plan is not None
    assert plan == Plan(
        queue="freeflow.audit.queue",
        attempts=4,
        tiers=tuple(
            Tier(
                tier,
                delay_ms,
                (Route("freeflow.events.retry", f"audit.{tier}", f"freeflow.audit.retry.{tier}"),),
            )
            for tier, delay_ms in _TIERS.items()
        ),
        leave=Leave.PUBLISH,
        returns=Return.EXCHANGE,
        parking=Parking("freeflow.events.dlq", Leave.REJECT, "freeflow.events.dlx", "dlq"),
        count=Count.HEADER,
        redrive=Redrive("", "freeflow.audit.queue"),
        count_header="x-retry-count",
        retry_stamps=(
            Stamp("x-original-routing-key", Fact.ORIGIN_ROUTING_KEY, once=True),
            Stamp("x-original-exchange", Fact.ORIGIN_EXCHANGE, once=True),
        ),
    )


def test_raffle_topology_is_as_documented() -> None:
    topology = raffle(retry_ttl_ms=7000, max_retries=5)
    assert _exchanges(topology) == {
        "raffle_exchange": "direct",
        "raffle_retry_exchange": "direct",
        "raffle_dlx": "direct",
    }
    assert _queues(topology) == {
        "raffle_queue": (
            "classic",
            {
                "x-dead-letter-exchange": "raffle_dlx",
                "x-dead-letter-routing-key": "raffle_dlq",
            },
        ),
        "raffle_retry_10s": (
            "classic",
            {
                "x-message-ttl": 7000,
                "x-dead-letter-exchange": "raffle_exchange",
                "x-dead-letter-routing-key": "raffle_queue",
            },
        ),
        "raffle_dlq": ("classic", {}),
    }
    assert _bindings(topology) == {
        ("raffle_exchange", "raffle_queue", "raffle_queue"),
        ("raffle_retry_exchange", "raffle_retry_10s", "raffle_retry_10s"),
        ("raffle_dlx", "raffle_dlq", "raffle_dlq"),
    }
    plan = topology.plan("raffle_queue")
    assert plan is not None
    assert plan.attempts == 6
    assert raffle().plans[0] == Plan(
        queue="raffle_queue",
        attempts=4,
        tiers=(
            Tier(
                "10s",
                10_000,
                (Route("raffle_retry_exchange", "raffle_retry_10s", "raffle_retry_10s"),),
            ),
        ),
        leave=Leave.PUBLISH,
        returns=Return.EXCHANGE,
        parking=Parking("raffle_dlq", Leave.REJECT, "raffle_dlx", "raffle_dlq"),
        count=Count.HEADER,
        redrive=Redrive("", "raffle_queue"),
        count_header="x-retries",
        retry_stamps=(Stamp("x-retry-reason", Fact.REASON),),
    )


def test_ratatoskr_topology_is_as_documented() -> None:
    topology = ratatoskr()
    assert _exchanges(topology) == {
        "ratatoskr.events": "topic",
        "my-service.events.dlq": "fanout",
    }
    assert _queues(topology) == {
        "my-service.events": (
            "quorum",
            {
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "my-service.events.retry",
            },
        ),
        "my-service.events.retry": (
            "quorum",
            {
                "x-message-ttl": 5000,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "my-service.events",
            },
        ),
        "my-service.events.dlq": ("quorum", {}),
    }
    assert _bindings(topology) == {
        ("ratatoskr.events", "#", "my-service.events"),
        ("my-service.events.dlq", "", "my-service.events.dlq"),
    }
    assert topology.plans[0] == Plan(
        queue="my-service.events",
        attempts=4,
        tiers=(
            Tier("5s", 5000, (Route("", "my-service.events.retry", "my-service.events.retry"),)),
        ),
        leave=Leave.REJECT,
        returns=Return.QUEUE,
        parking=Parking("my-service.events.dlq", Leave.PUBLISH, "my-service.events.dlq", ""),
        count=Count.X_DEATH,
        redrive=Redrive("", "my-service.events"),
        park_stamps=(Stamp("x-retry-count", Fact.RETRIES),),
    )


def test_ratatoskr_accepts_parameters() -> None:
    topology = ratatoskr(
        "orders",
        exchange="shop",
        routing_keys=("order.*", "refund.#"),
        retry_delay_ms=250,
        max_retries=0,
        queue_type=QueueType.CLASSIC,
    )
    assert {queue.type for queue in topology.queues} == {QueueType.CLASSIC}
    assert {key for source, key, _ in _bindings(topology) if source == "shop"} == {
        "order.*",
        "refund.#",
    }
    assert (topology.plans[0].attempts, topology.plans[0].tiers[0].delay_ms) == (1, 250)


def test_recommended_design_needs_no_exchange() -> None:
    topology = recommended("orders", tiers_ms=(1000, 90_000))
    assert [queue.name for queue in topology.queues] == [
        "orders",
        "orders.retry.1s",
        "orders.retry.1m30s",
        "orders.dlq",
    ]
    assert (topology.exchanges, topology.bindings) == ((), ())
    fed = recommended("orders", exchange="shop", routing_keys=("order.*",))
    assert _exchanges(fed) == {"shop": "topic"}
    assert _bindings(fed) == {("shop", "order.*", "orders")}


_HARDENED = [(name, design.build(hardened=True)) for name, design in DESIGNS.items()]


@pytest.mark.parametrize(("name", "topology"), _HARDENED)
def test_hardened_queues_lose_no_message(name: str, topology: Topology) -> None:
    """All are quorum queues, dead-letter at least once, and the dead-letter queue has no limit."""
    resting = {plan.parking.queue for plan in topology.plans}
    for queue in topology.queues:
        assert queue.type is QueueType.QUORUM
        if queue.name in resting:
            assert dict(queue.arguments) == {"x-delivery-limit": NO_DELIVERY_LIMIT}
        else:
            assert queue.arguments["x-dead-letter-strategy"] == "at-least-once"
            assert queue.arguments["x-overflow"] == "reject-publish"


@pytest.mark.parametrize(("name", "topology"), _HARDENED)
def test_hardened_plans_publish_and_count_retries(name: str, topology: Topology) -> None:
    table = RoutingTable(
        topology.exchanges, [queue.name for queue in topology.queues], topology.bindings
    )
    for plan in topology.plans:
        assert (plan.leave, plan.parking.by) == (Leave.PUBLISH, Leave.PUBLISH)
        assert (plan.returns, plan.count, plan.snooze) == (Return.QUEUE, Count.HEADER, None)
        main = topology.queue(plan.queue)
        assert main is not None
        dlx = str(main.arguments["x-dead-letter-exchange"])
        key = str(main.arguments.get("x-dead-letter-routing-key", ""))
        assert table.route(dlx, key) == (plan.parking.queue,)
        for tier in plan.tiers:
            for route in tier.routes:
                waiting = topology.queue(route.queue)
                assert waiting is not None
                assert waiting.arguments["x-message-ttl"] == tier.delay_ms
                assert waiting.arguments["x-dead-letter-exchange"] == ""
                assert waiting.arguments["x-dead-letter-routing-key"] == plan.queue


@pytest.mark.parametrize(("name", "topology"), _HARDENED)
def test_hardened_form_keeps_names_bindings_and_numbers(name: str, topology: Topology) -> None:
    faithful = DESIGNS[name].build()
    assert topology.exchanges == faithful.exchanges
    assert topology.bindings == faithful.bindings
    assert {queue.name for queue in topology.queues} == {queue.name for queue in faithful.queues}
    for hard, soft in zip(topology.plans, faithful.plans, strict=True):
        assert (hard.queue, hard.tiers, hard.attempts) == (soft.queue, soft.tiers, soft.attempts)
        assert (hard.redrive, hard.park_stamps) == (soft.redrive, soft.park_stamps)


@pytest.mark.parametrize("hardened", [False, True])
@pytest.mark.parametrize("name", list(DESIGNS))
def test_every_route_of_plan_exists(name: str, hardened: bool) -> None:
    topology = DESIGNS[name].build(hardened=hardened)
    names = [queue.name for queue in topology.queues]
    assert len(set(names)) == len(names)
    table = RoutingTable(topology.exchanges, names, topology.bindings)
    for plan in topology.plans:
        for tier in plan.tiers:
            assert tier.routes[-1].pattern == "#"
            for route in tier.routes:
                assert table.route(route.exchange, route.routing_key) == (route.queue,)
        parking, redrive = plan.parking, plan.redrive
        assert table.route(parking.exchange, parking.routing_key) == (parking.queue,)
        waits = {route.queue for tier in plan.tiers for route in tier.routes}
        (target,) = table.route(redrive.exchange, redrive.routing_key)
        assert target in {plan.queue, *waits}
