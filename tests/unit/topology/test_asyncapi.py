"""A topology as an AsyncAPI document."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hopback.designs import DESIGNS
from hopback.fields import Timestamp
from hopback.topology.asyncapi import PayloadSchemas, write_asyncapi
from hopback.topology.model import Binding, Exchange, Queue, Topology


@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_every_design_has_a_document_whose_references_lead_somewhere(name: str) -> None:
    """Ids are of the allowed letters, every queue is a channel, and JSON can carry all of it."""
    topology = DESIGNS[name].build()
    document: dict[str, Any] = json.loads(json.dumps(write_asyncapi(topology)))
    channels = document["channels"]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", ident) for ident in channels)
    addresses = [each["address"] for each in channels.values() if "x-hopback" in each]
    assert addresses == [queue.name for queue in topology.queues]
    for operation in document["operations"].values():
        assert operation["channel"]["$ref"].removeprefix("#/channels/") in channels


def test_a_plan_tells_attempts_waits_and_the_dead_letter_queue() -> None:
    """Only queues that are consumed are received from; the plan stands beside."""
    topology = DESIGNS["recommended"].build()
    (operation,) = write_asyncapi(topology)["operations"].values()  # type: ignore[attr-defined]
    plan = topology.plans[0]
    assert operation["x-hopback"]["attempts"] == plan.attempts
    assert operation["x-hopback"]["deadLetterQueue"] == plan.parking.queue


def test_names_that_look_alike_keep_apart_and_odd_values_are_left_out() -> None:
    """`a.b` and `a b` are two channels; what JSON cannot carry is no argument; plugins' types are none."""
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


def test_payloads_are_the_messages_and_what_they_share_stands_once() -> None:
    """A queue's schema is the payload of its message; schemas they refer to are components."""
    topology = DESIGNS["recommended"].build()
    payloads = PayloadSchemas(
        {"orders": {"$ref": "#/components/schemas/Order"}}, {"Order": {"type": "object"}}
    )
    document: dict[str, Any] = write_asyncapi(topology, payloads=payloads)
    assert document["components"] == {"schemas": {"Order": {"type": "object"}}}
    assert "#/components/schemas/Order" in json.dumps(document["channels"]["orders"])
