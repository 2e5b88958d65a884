"""Designs built from text: defaults, values, and every wrong one named at once."""

from __future__ import annotations

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
from hopback.errors import InvalidTopology
from hopback.topology.model import QueueType, Topology


def _said(name: str, params: dict[str, str]) -> list[str]:
    with pytest.raises(InvalidTopology) as caught:
        DESIGNS[name].build(params)
    return [str(problem) for problem in caught.value.problems]


def test_registry_lists_five_documented_designs_and_recommended() -> None:
    documented = [name for name, design in DESIGNS.items() if design.documented]
    assert documented == ["ratatoskr", "freeflow", "event-bus", "raffle", "file-pipeline"]
    assert set(DESIGNS) - set(documented) == {"recommended"}
    assert all(design.summary for design in DESIGNS.values())


def test_parameters_have_documented_defaults() -> None:
    shown = {
        name: {parameter.name: parameter.default for parameter in design.parameters}
        for name, design in DESIGNS.items()
    }
    assert shown == {
        "file-pipeline": {},
        "event-bus": {"services": "wms-cincout,wms-orders"},
        "freeflow": {
            "domains": "user,auth,alarm,document,workflow,notification,audit",
            "tiers": "30s,5m,30m",
            "audit": "audit.*",
        },
        "raffle": {"retry_ttl_ms": "10000", "max_retries": "3"},
        "ratatoskr": {
            "queue": "my-service.events",
            "exchange": "ratatoskr.events",
            "routing_keys": "#",
            "retry_delay": "5s",
            "max_retries": "3",
            "queue_type": "quorum",
        },
        "recommended": {"queue": "orders", "tiers": "30s,5m,30m"},
    }


@pytest.mark.parametrize(
    ("name", "built"),
    [
        ("file-pipeline", file_pipeline()),
        ("event-bus", event_bus()),
        ("freeflow", freeflow()),
        ("raffle", raffle()),
        ("ratatoskr", ratatoskr()),
        ("recommended", recommended()),
    ],
)
def test_defaults_equal_those_of_function(name: str, built: Topology) -> None:
    assert DESIGNS[name].build() == built


def test_parameter_values_reach_design() -> None:
    given = {
        "queue": "orders",
        "exchange": "shop",
        "routing_keys": "order.*, refund.#",
        "retry_delay": "1m30s",
        "max_retries": "7",
        "queue_type": "classic",
    }
    assert DESIGNS["ratatoskr"].build(given) == ratatoskr(
        "orders",
        exchange="shop",
        routing_keys=("order.*", "refund.#"),
        retry_delay_ms=90_000,
        max_retries=7,
        queue_type=QueueType.CLASSIC,
    )
    assert DESIGNS["recommended"].build({"tiers": "1s,5m"}) == recommended(tiers_ms=(1000, 300_000))
    services = DESIGNS["event-bus"].build({"services": "a-x,b-y"}, True)
    assert services == event_bus(["a-x", "b-y"], hardened=True)


def test_invalid_parameters_are_reported_with_path() -> None:
    assert _said(
        "ratatoskr",
        {"retry_dely": "3s", "zzz": "", "max_retries": "-1", "queue_type": "q", "routing_keys": ""},
    ) == [
        "params.retry_dely: expected one of queue, exchange, routing_keys, retry_delay,"
        " max_retries, queue_type (did you mean retry_delay?), got 'retry_dely'",
        "params.zzz: expected one of queue, exchange, routing_keys, retry_delay, max_retries,"
        " queue_type, got 'zzz'",
        "params.routing_keys: expected names separated by commas, got ''",
        "params.max_retries: expected a whole number, got '-1'",
        "params.queue_type: expected quorum or classic, got 'q'",
    ]


def test_design_without_parameters_refuses_them() -> None:
    assert _said("file-pipeline", {"services": "a"}) == [
        "params.services: expected no parameter (file-pipeline has none), got 'services'"
    ]


@pytest.mark.parametrize(
    ("name", "params", "problem"),
    [
        (
            "event-bus",
            {"services": "a-b,a-b"},
            "params.services[1]: expected each service once, got 'a-b' again",
        ),
        (
            "event-bus",
            {"services": "-b"},
            "params.services[0]: expected a name that does not begin with a hyphen, got '-b'",
        ),
        (
            "event-bus",
            {"services": "x" * 250},
            "params.services[0]: expected a name of at most 232 bytes, got 250 bytes",
        ),
        (
            "raffle",
            {"retry_ttl_ms": "0"},
            "params.retry_ttl_ms: expected 1 to 315360000000 ms, got 0 ms",
        ),
        ("raffle", {"retry_ttl_ms": "٣"}, "params.retry_ttl_ms: expected a whole number, got '٣'"),
        ("ratatoskr", {"queue": ""}, "params.queue: expected a name, got ''"),
        (
            "ratatoskr",
            {"queue": "amq.x"},
            "params.queue: expected a name not reserved by the broker (amq.…), got 'amq.x'",
        ),
        (
            "ratatoskr",
            {"exchange": "my-service.events.dlq"},
            "params.exchange: expected an exchange other than the fanout of the dead-letter queue,"
            " got 'my-service.events.dlq'",
        ),
        (
            "ratatoskr",
            {"queue_type": "stream"},
            "params.queue_type: expected quorum or classic, got 'stream'",
        ),
        (
            "ratatoskr",
            {"retry_delay": "soon"},
            "params.retry_delay: expected a duration like 5s, 1m30s or 250ms, got 'soon'",
        ),
        ("recommended", {"queue": ""}, "params.queue: expected a name, got ''"),
    ],
)
def test_unusable_parameter_value_is_refused(
    name: str, params: dict[str, str], problem: str
) -> None:
    assert _said(name, params) == [problem]


def test_design_functions_validate_arguments() -> None:
    with pytest.raises(InvalidTopology, match=r"params\.services: expected at least one"):
        event_bus([])
    with pytest.raises(InvalidTopology, match=r"params\.routing_keys: expected at least one"):
        ratatoskr(routing_keys=())
    with pytest.raises(InvalidTopology, match=r"params\.max_retries: expected at least 0, got -1"):
        raffle(max_retries=-1)
    with pytest.raises(InvalidTopology, match=r"params\.attempts: expected at least 1, got 0"):
        file_pipeline(attempts=0)


def test_freeflow_accepts_domains_and_tiers() -> None:
    given = {"domains": "auth,billing", "tiers": "10s,1h", "audit": "#"}
    built = DESIGNS["freeflow"].build(given)
    assert [queue.name for queue in built.queues] == [
        "freeflow.users.queue",
        "freeflow.auth.retry.10s",
        "freeflow.auth.retry.1h",
        "freeflow.events.dlq",
        "freeflow.billing.queue",
        "freeflow.billing.retry.10s",
        "freeflow.billing.retry.1h",
    ]
    waits = [queue.arguments.get("x-message-ttl") for queue in built.queues]
    assert waits == [None, 10_000, 3_600_000, None, None, 10_000, 3_600_000]
    assert _said("freeflow", {"domains": "a.b", "tiers": "soon", "audit": "user.*"}) == [
        "params.domains: expected words separated by commas, got 'a.b'",
        "params.tiers: expected a duration like 5s, 1m30s or 250ms, each once, separated by commas,"
        " got 'soon'",
    ]
    assert _said("freeflow", {"audit": "user.*"}) == [
        "params.audit: expected keys that match audit.retry, got 'user.*'"
    ]


def test_freeflow_reports_every_invalid_domain_and_tier() -> None:
    with pytest.raises(InvalidTopology) as caught:
        freeflow(queues={"a": ("x", "x.y"), "b": ("x",), "c": ()}, tiers_ms={"now": 0})
    assert [str(problem) for problem in caught.value.problems] == [
        "params.tiers_ms.now: expected 1 to 315360000000 ms, got 0 ms",
        "params.queues.a: expected domains of one word, got 'x.y'",
        "params.queues.b: expected each domain once, got 'x' again",
        "params.queues.c: expected at least one domain, got none",
    ]
    with pytest.raises(InvalidTopology) as nothing:
        freeflow(queues={}, tiers_ms={})
    assert [problem.path for problem in nothing.value.problems] == [
        "params.queues",
        "params.tiers_ms",
    ]
