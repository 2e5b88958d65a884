"""Resources for RabbitMQ's Messaging Topology Operator and for Terraform.

The schemas contain the fields of the custom resource definitions (rabbitmq.com/v1beta1) and of the
provider cyrilgdn/rabbitmq that Hopback writes.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from hopback.cli.app import run
from hopback.designs import DESIGNS
from hopback.topology import Binding, Exchange, Policy, Queue, Topology
from hopback.topology.definitions import Definable, canonical, without_unexportable
from hopback.topology.delays import delay_topology
from hopback.topology.provisioning import write_kubernetes, write_terraform

if TYPE_CHECKING:
    from pathlib import Path

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_TABLE = {"type": "object"}


def _schema(required: list[str], **fields: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }


_CLUSTER = _schema(["name"], name=_TEXT)
_CUSTOM_RESOURCES = {
    "Exchange": _schema(
        ["name", "rabbitmqClusterReference"],
        name=_TEXT,
        vhost=_TEXT,
        type=_TEXT,
        durable=_FLAG,
        autoDelete=_FLAG,
        arguments=_TABLE,
        rabbitmqClusterReference=_CLUSTER,
    ),
    "Queue": _schema(
        ["name", "rabbitmqClusterReference"],
        name=_TEXT,
        vhost=_TEXT,
        type=_TEXT,
        durable=_FLAG,
        autoDelete=_FLAG,
        deletionPolicy={"enum": ["delete", "retain"]},
        arguments=_TABLE,
        rabbitmqClusterReference=_CLUSTER,
    ),
    "Binding": _schema(
        ["rabbitmqClusterReference"],
        vhost=_TEXT,
        source=_TEXT,
        destination=_TEXT,
        destinationType={"enum": ["exchange", "queue"]},
        routingKey=_TEXT,
        arguments=_TABLE,
        rabbitmqClusterReference=_CLUSTER,
    ),
    "Policy": _schema(
        ["definition", "name", "pattern", "rabbitmqClusterReference"],
        name=_TEXT,
        vhost=_TEXT,
        pattern=_TEXT,
        priority={"type": "integer"},
        applyTo={
            "enum": ["queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all"]
        },
        definition=_TABLE,
        rabbitmqClusterReference=_CLUSTER,
    ),
}
_TEXT_MAP = {"type": "object", "additionalProperties": _TEXT}
_LIFECYCLE = _schema([], prevent_destroy=_FLAG)
_PROVIDER_RESOURCES = {
    "rabbitmq_exchange": _schema(
        ["name", "settings"],
        name=_TEXT,
        vhost=_TEXT,
        settings=_schema(
            ["type"], type=_TEXT, durable=_FLAG, auto_delete=_FLAG, arguments=_TEXT_MAP
        ),
    ),
    "rabbitmq_queue": _schema(
        ["name", "settings"],
        name=_TEXT,
        vhost=_TEXT,
        settings=_schema([], durable=_FLAG, auto_delete=_FLAG, arguments_json=_TEXT),
        lifecycle=_LIFECYCLE,
    ),
    "rabbitmq_binding": _schema(
        ["source", "vhost", "destination", "destination_type"],
        source=_TEXT,
        vhost=_TEXT,
        destination=_TEXT,
        destination_type=_TEXT,
        routing_key=_TEXT,
        arguments_json=_TEXT,
    ),
    "rabbitmq_policy": _schema(
        ["name", "vhost", "policy"],
        name=_TEXT,
        vhost=_TEXT,
        policy=_schema(
            ["pattern", "priority", "apply_to", "definition"],
            pattern=_TEXT,
            priority={"type": "integer"},
            apply_to=_TEXT,
            definition={"type": "object", "additionalProperties": {"type": ["string", "integer"]}},
        ),
    ),
}
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_REFERENCE = re.compile(r"\$\{(\w+)\.([\w-]+)\.name\}")

_AWKWARD = Topology(
    "awkward",
    exchanges=(
        Exchange("Über ${x}", arguments={"alternate-exchange": "%{y}"}),
        Exchange("hidden", internal=True),
        Exchange("numbers", arguments={"n": 1}),
    ),
    queues=(Queue("a_b"), Queue("a.b"), Queue("a-b"), Queue("7"), Queue("--"), Queue("_" * 255)),
    bindings=(
        Binding("Über ${x}", "a_b", "k", arguments={"x-match": "all", "n": 1}),
        Binding("Über ${x}", "a_b", "k", arguments={"x-match": "any", "n": 2}),
    ),
    policies=(
        Policy("ttl", "^a", {"message-ttl": 5, "dead-letter-exchange": "dlx"}, apply_to="queues"),
        Policy("digits", "^a", {"dead-letter-routing-key": "12"}),
    ),
)


def _topologies() -> list[Topology]:
    built = [
        design.build({}, hardened=hardened)
        for design in DESIGNS.values()
        for hardened in (False, True)
        if design.documented or not hardened
    ]
    return [without_unexportable(each, None)[0] for each in (*built, delay_topology(), _AWKWARD)]


def _objects(topology: Topology) -> list[Definable]:
    return [*topology.exchanges, *topology.queues, *topology.bindings, *topology.policies]


@pytest.mark.parametrize("topology", _topologies(), ids=lambda each: each.name)
def test_kubernetes_resources_fit_their_definitions_and_keep_every_value(
    topology: Topology,
) -> None:
    resources, notes = write_kubernetes(topology, cluster="shop", vhost="v")
    names = [(item["kind"], item["metadata"]["name"]) for item in resources["items"]]
    assert len(set(names)) == len(names)
    for item in resources["items"]:
        assert item["apiVersion"] == "rabbitmq.com/v1beta1"
        assert _SUBDOMAIN.fullmatch(item["metadata"]["name"])
        assert len(item["metadata"]["name"]) <= 253
        assert item["spec"]["vhost"] == "v"
        jsonschema.validate(item["spec"], _CUSTOM_RESOURCES[item["kind"]])
    expected = [canonical(each, None) for each in _objects(topology)]
    assert len(names) + len(notes) == len(expected)
    kept = [each for each in expected if not each.get("internal")]
    for item, entry in zip(resources["items"], kept, strict=True):
        spec = item["spec"]
        assert spec.get("name") == entry.get("name")
        assert spec.get("arguments") == entry.get("arguments")
        assert spec.get("definition") == entry.get("definition")
        assert spec.get("routingKey") == entry.get("routing_key")


@pytest.mark.parametrize("topology", _topologies(), ids=lambda each: each.name)
def test_terraform_resources_fit_the_provider_and_refer_to_existing_resources(
    topology: Topology,
) -> None:
    configuration, notes = write_terraform(topology, vhost="v")
    resources = configuration["resource"]
    for kind, named in resources.items():
        for name, resource in named.items():
            assert _IDENTIFIER.fullmatch(name)
            assert resource["vhost"] == "v"
            jsonschema.validate(resource, _PROVIDER_RESOURCES[kind])
    for binding in resources.get("rabbitmq_binding", {}).values():
        for end in (binding["source"], binding["destination"]):
            found = _REFERENCE.fullmatch(end)
            assert found is not None or end.startswith("amq."), end
            assert found is None or found[2] in resources[found[1]]
    assert sum(map(len, resources.values())) + len(notes) == len(_objects(topology))
    queues = {each.name: dict(each.declare_arguments) for each in topology.queues}
    written = resources.get("rabbitmq_queue", {}).values()
    assert queues == {
        each["name"]: json.loads(each["settings"]["arguments_json"]) for each in written
    }
    assert all(each["lifecycle"] == {"prevent_destroy": True} for each in written)


def test_terraform_templates_are_escaped_and_unsupported_objects_reported() -> None:
    configuration, notes = write_terraform(_AWKWARD, vhost="/")
    (exchange,) = configuration["resource"]["rabbitmq_exchange"].values()
    assert exchange["name"] == "Über $${x}"
    assert exchange["settings"]["arguments"] == {"alternate-exchange": "%%{y}"}
    assert list(configuration["resource"]["rabbitmq_policy"]) == ["ttl"]
    assert [note.partition(" left out")[0] for note in notes] == [
        '"hidden"',
        '"numbers"',
        '"digits"',
    ]


@pytest.mark.parametrize("form", ["kubernetes", "terraform"])
def test_export_prints_resources(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topology", "export", "raffle", "-o", form, "--cluster", "shop"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.keys() & {"items", "resource"}


_WITH_INTERNAL = {
    "exchanges": [
        {"name": "events", "vhost": "/", "type": "topic", "durable": True},
        {"name": "hidden", "vhost": "/", "type": "fanout", "durable": True, "internal": True},
    ],
    "queues": [{"name": "hidden", "vhost": "/", "durable": True, "arguments": {}}],
    "bindings": [
        {
            "source": source,
            "vhost": "/",
            "destination": "hidden",
            "destination_type": kind,
            "routing_key": "order",
            "arguments": {},
        }
        for source, kind in (("events", "exchange"), ("hidden", "queue"), ("events", "queue"))
    ],
}


@pytest.mark.parametrize("form", ["kubernetes", "terraform"])
def test_export_leaves_out_bindings_of_exchanges_it_leaves_out(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the binding to the queue of the same name is kept."""
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(_WITH_INTERNAL))
    assert run(["topology", "export", str(file), "-o", form, "--cluster", "shop"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    if form == "kubernetes":
        bindings = [item["spec"] for item in document["items"] if item["kind"] == "Binding"]
        ends = [(each["source"], each["destinationType"]) for each in bindings]
        assert ends == [("events", "queue")]
    else:
        (binding,) = document["resource"]["rabbitmq_binding"].values()
        assert binding["source"] == "${rabbitmq_exchange.events.name}"
        assert binding["destination"] == "${rabbitmq_queue.hidden.name}"
    reason = 'left out: exchange "hidden" is left out'
    assert f'Note: binding "events" → "hidden" {reason}' in printed.err
    assert f'Note: binding "hidden" → "hidden" {reason}' in printed.err
