"""Hazards planted in a definitions file of the form that RabbitMQ 4 exports, and near-misses."""

from __future__ import annotations

import json
from typing import Any

from hopback.topology.check import check
from hopback.topology.definitions import read_definitions, write_definitions
from hopback.version import BrokerVersion

V4 = BrokerVersion(4, 0)


def _queue(name: str, kind: str = "quorum", **arguments: Any) -> dict[str, Any]:
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return {
        "name": name, "vhost": "/", "durable": True, "auto_delete": False, "type": kind,
        "arguments": {"x-queue-type": kind, **table},
    }  # fmt: skip


def _exchange(name: str, kind: str, **arguments: Any) -> dict[str, Any]:
    return {
        "name": name, "vhost": "/", "type": kind, "durable": True, "auto_delete": False,
        "internal": False, "arguments": {key.replace("_", "-"): it for key, it in arguments.items()},
    }  # fmt: skip


def _bound(source: str, destination: str, key: str = "") -> dict[str, Any]:
    return {
        "source": source, "vhost": "/", "destination": destination, "destination_type": "queue",
        "routing_key": key, "arguments": {},
    }  # fmt: skip


def _parameter(component: str, name: str, vhost: str = "/", **value: Any) -> dict[str, Any]:
    settings = {key.replace("_", "-"): each for key, each in value.items()}
    return {"component": component, "name": name, "vhost": vhost, "value": settings}


def _file() -> dict[str, Any]:
    """A whole broker: two virtual hosts, users, parameters, and a hazard of each kind."""
    return {
        "rabbit_version": "4.0.5",
        "rabbitmq_version": "4.0.5",
        "product_name": "RabbitMQ",
        "product_version": "4.0.5",
        "rabbitmq_definition_format": "cluster",
        "original_cluster_name": "rabbit@box",
        "explanation": "Definitions of cluster 'rabbit@box'",
        "users": [{
            "name": "guest", "password_hash": "x", "tags": ["administrator"], "limits": {},
            "hashing_algorithm": "rabbit_password_hashing_sha256",
        }],
        "vhosts": [
            {"name": name, "description": "", "tags": [], "default_queue_type": "quorum",
             "metadata": {"description": "", "tags": [], "default_queue_type": "quorum"}}
            for name in ("/", "other")
        ],
        "permissions": [
            {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
        ],
        "topic_permissions": [],
        "global_parameters": [
            {"name": "cluster_tags", "value": []},
            {"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-1"},
        ],
        "parameters": [
            _parameter("shovel", "drain", src_queue="orders.dlq", dest_queue="orders",
                       src_uri="amqp://", dest_uri="amqp://", ack_mode="no-ack"),
            _parameter("shovel", "elsewhere", "other", src_queue="orders.dlq", ack_mode="no-ack"),
            _parameter("shovel", "fine", src_queue="scratch", dest_queue="orders",
                       src_uri="amqp://", dest_uri="amqp://", ack_mode="on-confirm"),
            _parameter("federation-upstream", "site", uri="amqp://site", ack_mode="on-publish"),
            _parameter("operator_policy", "tidy", pattern=r"\.dlq$", priority=1,
                       apply_to="queues", definition={"message-ttl": 86_400_000}),
            {"component": "vhost-limits", "name": "limits", "vhost": "/",
             "value": {"max-queues": 100}},
        ],
        "policies": [
            {"vhost": "/", "name": "fed", "pattern": "dlq", "apply-to": "queues", "priority": 0,
             "definition": {"federation-upstream-set": "all"}}
        ],
        "queues": [
            _queue("orders", dead_letter_exchange="failed"),
            _queue("orders.retry", message_ttl=1000, dead_letter_exchange="",
                   dead_letter_routing_key="orders"),
            _queue("orders.dlq"),
            _queue("billing", "classic"),
            {**_queue("scratch", "classic"), "durable": False},
            _queue("log", "stream"),
        ],
        "exchanges": [
            _exchange("failed", "fanout"),
            _exchange("later", "x-delayed-message", x_delayed_type="direct"),
            _exchange("in", "topic", alternate_exchange="spare"),
            _exchange("spare", "fanout", alternate_exchange="in"),
        ],
        "bindings": [
            _bound("failed", "orders.retry"), _bound("failed", "billing"), _bound("failed", "log")
        ],
    }  # fmt: skip


def test_exported_definitions_round_trip() -> None:
    topology = read_definitions(json.dumps(_file()), vhost="/")
    written, notes = write_definitions(topology)
    assert (written, notes) == (_file(), ())


def test_hazards_of_definitions_are_found_at_their_place() -> None:
    """This includes parameters of this virtual host."""
    topology = read_definitions(json.dumps(_file()), vhost="/")
    found = {(each.rule, each.place) for each in check(topology, V4)}
    assert found >= {
        ("dead-letters-reach-others", "queue `orders`"),
        ("transient-queue", "queue `scratch`"),
        ("delayed-exchange", "exchange `later`"),
        ("alternate-exchange-catches-nothing", "exchange `in`"),
        ("link-unconfirmed", "shovel `drain`"),
        ("link-unconfirmed", "federation upstream `site`"),
        ("shovel-drains-failures", "shovel `drain`"),
        ("failures-federated", "policy `fed`"),
        ("operator-policy", "operator policy `tidy`"),
        # By the operator policy.
        ("dead-letters-expire", "queue `orders.dlq`"),
    }
    shovels = {place for _, place in found if place.startswith("shovel")}
    assert shovels == {"shovel `drain`"}


def test_definitions_without_hazards_have_no_findings() -> None:
    whole = _file()
    whole["bindings"] = [_bound("failed", "orders.retry"), _bound("spare", "billing")]
    whole["queues"][4]["durable"] = True
    whole["exchanges"][1]["type"] = "direct"
    whole["parameters"] = whole["parameters"][1:3]
    whole["policies"] = []
    rules = {each.rule for each in check(read_definitions(json.dumps(whole), vhost="/"), V4)}
    assert not rules & {
        "dead-letters-reach-others", "transient-queue", "delayed-exchange", "link-unconfirmed",
        "alternate-exchange-catches-nothing", "shovel-drains-failures", "failures-federated",
        "operator-policy", "dead-letters-expire",
    }  # fmt: skip


def test_invalid_parameters_are_ignored() -> None:
    whole = _file()
    whole["parameters"] = [
        7, {}, {"component": "shovel"}, {"component": "shovel", "name": 1, "value": []},
        _parameter("operator_policy", "p", pattern=3, definition=[]),
        _parameter("shovel", "s", src_queue=5, ack_mode={}),
    ]  # fmt: skip
    rules = {each.rule for each in check(read_definitions(json.dumps(whole), vhost="/"), V4)}
    assert "operator-policy" not in rules
    assert "link-unconfirmed" not in rules


def test_file_without_plans_is_advised_to_add_them() -> None:
    whole = read_definitions({"queues": [{"name": "q"}]})
    (told,) = [each for each in check(whole) if each.rule == "queue-without-plan"]
    assert told.fix == "Give consumed queues a plan in a topology file, and check that file."
