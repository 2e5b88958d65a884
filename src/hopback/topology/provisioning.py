"""Export a topology for Kubernetes and Terraform.

For Kubernetes, the custom resources of the RabbitMQ Messaging Topology Operator are used. For
Terraform, the resources of the provider cyrilgdn/rabbitmq are written in JSON syntax (`*.tf.json`).
In both cases, a queue is kept when its resource is deleted, because it may contain messages.
Internal exchanges are not supported. The Terraform provider only supports some types of arguments.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.topology.definitions import canonical
from hopback.topology.wording import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hopback.topology.model import Topology

Entry: TypeAlias = "Mapping[str, Any]"
"""An object in the format of RabbitMQ definitions."""

_LONGEST_NAME = 200
"""Maximum length of a resource name without its hash. The limit of Kubernetes is 253."""


def write_kubernetes(
    topology: Topology, *, cluster: str, vhost: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a topology as a list of custom resources, and a note for each omitted object.

    `cluster` is the name of the RabbitmqCluster.
    """
    items = []
    notes: list[str] = []
    for section, name, entry in _entries(topology, _kubernetes_name, _kubernetes_refusal, notes):
        kind = {"policies": "Policy"}.get(section, section[:-1].capitalize())
        spec = {
            **_kubernetes_spec(section, entry),
            "vhost": vhost,
            "rabbitmqClusterReference": {"name": cluster},
        }
        items.append(
            {
                "apiVersion": "rabbitmq.com/v1beta1",
                "kind": kind,
                "metadata": {"name": name},
                "spec": spec,
            }
        )
    return {"apiVersion": "v1", "kind": "List", "items": items}, tuple(notes)


def _kubernetes_refusal(_section: str, entry: Entry) -> str | None:
    return "the operator cannot create internal exchanges" if entry.get("internal") else None


def _kubernetes_spec(section: str, entry: Entry) -> dict[str, Any]:
    if section == "bindings":
        return {
            "source": entry["source"],
            "destination": entry["destination"],
            "destinationType": entry["destination_type"],
            "routingKey": entry["routing_key"],
            "arguments": entry["arguments"],
        }
    if section == "policies":
        return {
            "name": entry["name"],
            "pattern": entry["pattern"],
            "applyTo": entry["apply-to"],
            "priority": entry["priority"],
            "definition": entry["definition"],
        }
    spec = {
        "name": entry["name"],
        "type": entry.get("type"),
        "durable": entry["durable"],
        "autoDelete": entry["auto_delete"],
        "arguments": entry["arguments"],
    }
    if section == "queues":
        spec["type"] = entry["arguments"].get("x-queue-type", "classic")
        spec["deletionPolicy"] = "retain"
    return spec


def write_terraform(topology: Topology, *, vhost: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a topology as a Terraform configuration, and a note for each omitted object."""
    resources: dict[str, dict[str, Any]] = {}
    references: dict[tuple[str, str], str] = {}
    notes: list[str] = []
    for section, name, entry in _entries(topology, _terraform_name, _terraform_refusal, notes):
        kind = {"policies": "rabbitmq_policy"}.get(section, f"rabbitmq_{section[:-1]}")
        resource = _escape_templates({**_terraform_fields(section, entry), "vhost": vhost})
        if section == "bindings":
            # Use references so that Terraform creates exchanges and queues before bindings.
            ends = {"source": "exchange", "destination": entry["destination_type"]}
            for end, of in ends.items():
                found = references.get((f"{of}s", entry[end]))
                resource[end] = found or resource[end]
        elif section == "queues":
            resource["lifecycle"] = {"prevent_destroy": True}
        resources.setdefault(kind, {})[name] = resource
        references[section, entry.get("name", "")] = f"${{{kind}.{name}.name}}"
    providers = {"rabbitmq": {"source": "cyrilgdn/rabbitmq"}}
    return {"terraform": {"required_providers": providers}, "resource": resources}, tuple(notes)


def _terraform_refusal(section: str, entry: Entry) -> str | None:
    if entry.get("internal"):
        return "the provider cannot create internal exchanges"
    if section == "exchanges" and not all(isinstance(v, str) for v in entry["arguments"].values()):
        return "the provider sends arguments of exchanges as text"
    if section == "policies":
        values = entry["definition"].values()
        if not all(_is_policy_value(value) for value in values):
            return "the provider sends numbers and text in policies, and text of digits as a number"
    return None


def _is_policy_value(value: object) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"[+-]?\d+", value) is None
    return isinstance(value, int) and not isinstance(value, bool)


def _terraform_fields(section: str, entry: Entry) -> dict[str, Any]:
    if section == "bindings":
        fields = {name: entry[name] for name in ("source", "destination", "destination_type")}
        fields["routing_key"] = entry["routing_key"]
        if entry["arguments"]:
            fields["arguments_json"] = json.dumps(entry["arguments"])
        return fields
    if section == "policies":
        policy = {
            "pattern": entry["pattern"],
            "priority": entry["priority"],
            "apply_to": entry["apply-to"],
            "definition": entry["definition"],
        }
        return {"name": entry["name"], "policy": policy}
    settings = {"durable": entry["durable"], "auto_delete": entry["auto_delete"]}
    if section == "exchanges":
        settings |= {"type": entry["type"], "arguments": entry["arguments"]}
    else:
        settings["arguments_json"] = json.dumps(entry["arguments"])
    return {"name": entry["name"], "settings": settings}


def _escape_templates(value: dict[str, Any]) -> dict[str, Any]:
    """Escape `${` and `%{`, which are special in Terraform."""
    found: dict[str, Any] = json.loads(re.sub(r"([$%])\{", r"\1\1{", json.dumps(value)))
    return found


def _entries(
    topology: Topology,
    clean: Callable[[str], str],
    refuse: Callable[[str, Entry], str | None],
    notes: list[str],
) -> Iterator[tuple[str, str, Entry]]:
    """Yield the section, resource name and definition of each supported object.

    Add a note for each of the others. Bindings of an omitted exchange are omitted too, because
    they could not be created. Duplicate names get a hash suffix.
    """
    omitted: set[str] = set()
    for section in ("exchanges", "queues", "bindings", "policies"):
        entries = [canonical(item, None) for item in getattr(topology, section)]
        names = [clean(_label(entry))[:_LONGEST_NAME] for entry in entries]
        counts = Counter(names)
        for name, entry in zip(names, entries, strict=True):
            refusal = refuse(section, entry) or _lost_end(section, entry, omitted)
            if refusal is not None:
                notes.append(f"{_described(entry)} left out: {refusal}")
                if section == "exchanges":
                    omitted.add(str(entry["name"]))
                continue
            digest = sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:8]
            yield section, name if counts[name] == 1 else f"{name}-{digest}", entry


def _lost_end(section: str, entry: Entry, omitted: set[str]) -> str | None:
    """Return the reason to omit a binding of an omitted exchange."""
    if section != "bindings":
        return None
    exchanges = [entry["source"]]
    if entry["destination_type"] == "exchange":
        exchanges.append(entry["destination"])
    lost = next((name for name in exchanges if name in omitted), None)
    return None if lost is None else f"exchange {quote(lost)} is left out"


def _label(entry: Entry) -> str:
    if "name" in entry:
        return str(entry["name"])
    return f"{entry['source']}.{entry['destination']}.{entry['routing_key']}"


def _kubernetes_name(label: str) -> str:
    """Convert a label to a valid DNS subdomain."""
    name = re.sub(r"[^a-z0-9.]+", "-", label.lower())
    return re.sub(r"[-.]*\.[-.]*", ".", name).strip("-.") or "unnamed"


def _terraform_name(label: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", label)
    return name if name[:1].isalpha() else f"_{name}"


def _described(entry: Entry) -> str:
    if "name" in entry:
        return quote(entry["name"])
    return f"binding {quote(entry['source'])} → {quote(entry['destination'])}"
