"""A topology as an AsyncAPI document."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from hopback import App, Output, Park
from hopback.designs import DESIGNS
from hopback.fields import Timestamp
from hopback.runtime.message_types import payload_schemas
from hopback.topology.asyncapi import MessageSchema, PayloadSchemas, write_asyncapi
from hopback.topology.model import Binding, Exchange, Queue, Topology


@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_asyncapi_of_every_design_is_valid_and_references_resolve(name: str) -> None:
    topology = DESIGNS[name].build()
    document: dict[str, Any] = json.loads(json.dumps(write_asyncapi(topology, internal=True)))
    channels = document["channels"]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", ident) for ident in channels)
    addresses = [each["address"] for each in channels.values() if "x-hopback" in each]
    assert addresses == [queue.name for queue in topology.queues]
    for operation in document["operations"].values():
        assert operation["channel"]["$ref"].removeprefix("#/channels/") in channels


def test_asyncapi_operation_contains_plan() -> None:
    """Only consumed queues are received from."""
    topology = DESIGNS["recommended"].build()
    (operation,) = write_asyncapi(topology)["operations"].values()  # type: ignore[attr-defined]
    plan = topology.plans[0]
    assert operation["x-hopback"]["attempts"] == plan.attempts
    assert operation["x-hopback"]["deadLetterQueue"] == plan.parking.queue


def test_similar_names_are_separate_channels() -> None:
    """Values that JSON cannot represent and types of plugins are omitted."""
    topology = Topology(
        "odd",
        exchanges=(Exchange("x", "x-delayed-message"), Exchange("y")),
        queues=(
            Queue("a.b", arguments={"list": [1, {"k": "v"}], "when": Timestamp(1)}),
            Queue("a b"),
            Queue("é"),
        ),
        bindings=(Binding("x", "a.b", "k"), Binding("x", "y", "k", to_exchange=True)),
    )
    document: Any = write_asyncapi(topology, version="2.0.0")
    assert list(document["channels"]) == ["x_k", "a_b", "a_b_2", "unnamed"]
    assert "type" not in document["channels"]["x_k"]["bindings"]["amqp"]["exchange"]
    assert document["channels"]["a_b"]["x-hopback"]["arguments"] == {"list": [1, {"k": "v"}]}
    assert document["operations"]["receive_a_b"].get("x-hopback") is None
    assert document["info"] == {"title": "odd", "version": "2.0.0"}


def test_payload_schemas_are_shared_components() -> None:
    topology = DESIGNS["recommended"].build()
    payloads = PayloadSchemas(
        {"orders": [MessageSchema("orders", {"$ref": "#/components/schemas/Order"})]},
        shared={"Order": {"type": "object"}},
    )
    document: dict[str, Any] = write_asyncapi(topology, payloads=payloads)
    assert document["components"] == {"schemas": {"Order": {"type": "object"}}}
    assert "#/components/schemas/Order" in json.dumps(document["channels"]["orders"])


def test_internal_queues_are_included_on_request() -> None:
    """These are retry, dead-letter, delay and schedule queues, and the exchanges that lead to them."""
    app = App("shop")
    app.delays("7d")
    app.queue("orders", retry=["30s"], bind={"shop.events": "order.*"})

    @app.every("5m", name="report")
    async def report() -> None: ...

    names = list(write_asyncapi(app.topology)["channels"])  # type: ignore[call-overload]
    assert names == ["shop_events_order", "orders", "report"]
    whole: Any = write_asyncapi(app.topology, internal=True)["channels"]
    assert {queue.name for queue in app.topology.queues} <= {
        one["address"] for one in whole.values()
    }


@dataclass
class Order:
    number: int


@dataclass
class Receipt:
    total: float


def test_handlers_describe_types_replies_and_outputs() -> None:
    app = App("shop")
    outputs = [
        Output("order.paid", Receipt, exchange="shop.events", message_type="paid"),
        Output("mails"),
    ]

    @app.handler("events", retry=["30s"], message_type="placed", publishes=outputs)
    async def placed(order: Order) -> None: ...

    @app.handler("events", message_type="raw")
    async def raw(body: bytes) -> None: ...

    @app.handler("prices", retry=None, replies=True)
    async def price(order: Order) -> Receipt | Park:
        return Receipt(1.0)

    document: Any = write_asyncapi(app.topology, payloads=payload_schemas(app))
    json.dumps(document)
    channels, operations = document["channels"], document["operations"]
    order, receipt = ({"$ref": f"#/components/schemas/{one}"} for one in ("Order", "Receipt"))
    assert channels["events"]["messages"] == {
        "placed": {"name": "placed", "payload": order},
        "raw": {"name": "raw"},
    }
    reply = operations["receive_prices"]["reply"]
    assert reply["channel"] == {"$ref": "#/channels/prices_reply"}
    assert channels["prices_reply"]["messages"] == {
        "reply_to_prices": {"name": "reply to prices", "payload": receipt}
    }
    sent = operations["send_shop_events_order_paid"]
    assert (sent["action"], sent["x-hopback"]) == ("send", {"handlers": ["events"]})
    assert channels["send_shop_events_order_paid"]["messages"] == {
        "paid": {"name": "paid", "payload": receipt}
    }
    assert channels["send_mails"]["messages"] == {"mails": {"name": "mails"}}
    assert channels["send_mails"]["address"] == "mails"
    assert set(document["components"]["schemas"]) == {"Order", "Receipt"}
