"""Where a simulated message is published."""

from __future__ import annotations

import pytest

from hopback.designs import DESIGNS
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue, Topology
from hopback.topology.routing import CannotSimulate, Entrance, RoutingTable, find_entrance


@pytest.mark.parametrize(
    ("system", "queue", "expected"),
    [
        ("file-pipeline", "q.validator", Entrance("domain.events", "files.uploaded.example")),
        ("file-pipeline", "q.audit", Entrance("domain.events", "example")),
        ("event-bus", "wms.queue.wms-orders", Entrance("wms.main-exchange", "")),
        ("freeflow", "freeflow.users.queue", Entrance("freeflow.events", "user.example")),
        ("raffle", "raffle_queue", Entrance("raffle_exchange", "raffle_queue")),
        ("ratatoskr", "my-service.events", Entrance("ratatoskr.events", "example")),
        ("recommended", "orders", Entrance("", "orders")),
    ],
)
def test_entrance_is_exchange_for_producers(system: str, queue: str, expected: Entrance) -> None:
    assert find_entrance(DESIGNS[system].build(), queue) == expected


@pytest.mark.parametrize("system", DESIGNS)
@pytest.mark.parametrize("hardened", [False, True])
def test_every_queue_of_every_design_has_entrance(system: str, hardened: bool) -> None:
    topology = DESIGNS[system].build(hardened=hardened)
    table = RoutingTable(topology.exchanges, [q.name for q in topology.queues], topology.bindings)
    assert topology.plans
    for plan in topology.plans:
        entrance = find_entrance(topology, plan.queue)
        assert plan.queue in table.route(entrance.exchange, entrance.routing_key)


def test_given_routing_key_is_kept() -> None:
    found = find_entrance(DESIGNS["freeflow"].build(), "freeflow.users.queue", None, "auth.failed")
    assert found == Entrance("freeflow.events", "auth.failed")


def test_routing_key_to_another_queue_is_refused() -> None:
    with pytest.raises(CannotSimulate, match=r"'alarm\.\*'") as caught:
        find_entrance(DESIGNS["freeflow"].build(), "freeflow.alarms.queue", None, "user.created")
    assert "'user.created'" in str(caught.value)


def test_unknown_exchange_is_refused() -> None:
    with pytest.raises(CannotSimulate, match="exchange 'nowhere' does not lead to queue"):
        find_entrance(DESIGNS["raffle"].build(), "raffle_queue", "nowhere")


def test_entrance_follows_bindings_between_exchanges() -> None:
    topology = Topology(
        "two",
        exchanges=(
            Exchange("inner", ExchangeType.TOPIC, internal=True),
            Exchange("outer", ExchangeType.TOPIC),
        ),
        queues=(Queue("q"),),
        bindings=(
            Binding("inner", "q", "a.#.z"),
            Binding("outer", "inner", "a.#", to_exchange=True),
        ),
    )
    assert find_entrance(topology, "q") == Entrance("outer", "a.z")
