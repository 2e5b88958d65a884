"""The manifests of deploy/kubernetes: built as Kustomize builds them, and validated."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import click
import jsonschema
import kubernetes_validate
import pytest
import yaml  # type: ignore[import-untyped]

from hopback.cli.app import root
from hopback.cli.options import Seconds
from hopback.ops.http.settings import parse_settings
from tests.architecture.source import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = ROOT / "deploy" / "kubernetes"
_KUSTOMIZATIONS = sorted(path.parent for path in _FOLDER.rglob("kustomization.yaml"))
_VERSIONS = ("1.31.0", "1.37.0")


def _build(folder: Path) -> list[dict[str, Any]]:
    """Return the resources of a kustomization, with its patches, images and namespace."""
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert plan.keys() <= {
        "apiVersion", "kind", "resources", "patches", "images", "namespace", "configMapGenerator"
    }  # fmt: skip
    found: list[dict[str, Any]] = []
    for name in plan["resources"]:
        path = (folder / name).resolve()
        found += _build(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    for each in plan.get("configMapGenerator", ()):
        data = {name: (folder / name).read_text() for name in each["files"]}
        metadata = {"name": each["name"]}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for patch in plan.get("patches", ()):
        target = patch["target"]
        (resource,) = (
            one
            for one in found
            if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"])
        )
        for operation in yaml.safe_load(patch["patch"]):
            _patch(resource, **operation)
    for image in plan.get("images", ()):
        for container in _containers(found):
            if container["image"].rpartition(":")[0] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    if "namespace" in plan:
        for resource in found:
            resource["metadata"]["namespace"] = plan["namespace"]
    return found


def _patch(resource: Any, op: str, path: str, value: object = None) -> None:
    *way, last = path.strip("/").split("/")
    for step in way:
        resource = resource[int(step) if isinstance(resource, list) else step]
    assert last in resource
    if op == "remove":
        del resource[last]
    else:
        assert op == "replace"
        resource[last] = value


def _containers(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    templates = [
        each["spec"]["template"] for each in resources if "template" in each.get("spec", {})
    ]
    return [container for each in templates for container in each["spec"]["containers"]]


def _object(required: list[str], **fields: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }


_TEXT = {"type": "string"}
_NAMED = _object(["name"], name=_TEXT)
_COUNT = {"type": "integer", "minimum": 0}
_KEDA = {
    # The fields of KEDA's definitions (keda.sh/v1alpha1) and of its RabbitMQ scaler in use here.
    "ScaledObject": _object(
        ["scaleTargetRef", "triggers"],
        scaleTargetRef=_NAMED,
        minReplicaCount=_COUNT,
        maxReplicaCount=_COUNT,
        pollingInterval=_COUNT,
        triggers={
            "type": "array",
            "items": _object(
                ["type", "metadata"],
                type={"const": "rabbitmq"},
                metadata=_object(
                    ["queueName", "mode", "value"],
                    protocol={"enum": ["auto", "amqp", "http"]},
                    queueName=_TEXT,
                    mode={"enum": ["QueueLength", "MessageRate"]},
                    value=_TEXT,
                ),
                authenticationRef=_NAMED,
            ),
        },
    ),
    "TriggerAuthentication": _object(
        [],
        secretTargetRef={
            "type": "array",
            "items": _object(
                ["parameter", "name", "key"], parameter={"const": "host"}, name=_TEXT, key=_TEXT
            ),
        },
    ),
}


@pytest.mark.parametrize("folder", _KUSTOMIZATIONS, ids=lambda path: path.name)
def test_every_resource_fits_the_schemas_of_kubernetes(folder: Path) -> None:
    resources = _build(folder)
    assert resources
    for resource in resources:
        if resource["apiVersion"] == "keda.sh/v1alpha1":
            jsonschema.validate(resource["spec"], _KEDA[resource["kind"]])
            continue
        for version in _VERSIONS:
            kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_pods_run_restricted_and_stop_within_their_grace_period(kind: str) -> None:
    (workload,) = (one for one in _build(_FOLDER / "overlays/example") if one["kind"] == kind)
    pod = workload["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    (container,) = pod["containers"]
    assert container["image"].startswith("registry.example.com/")
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"livenessProbe", "readinessProbe", "startupProbe"} <= container.keys()
    command = root.get_command(click.Context(root), container["args"][0])
    assert command is not None
    context = command.make_context("hopback", [*container["args"][1:], "--broker=embedded"])
    known = {option.envvar for option in command.params}
    given = {each["name"]: each.get("value") for each in container["env"]}
    ours = {name for name in given if name.startswith("HOPBACK_")} - {"HOPBACK_SESSION_SECRET"}
    assert ours <= known
    grace = Seconds().convert(
        given.get("HOPBACK_GRACE") or context.params.get("grace", 0), None, None
    )
    assert pod["terminationGracePeriodSeconds"] >= grace + 10
    mounted = {each["name"] for each in container["volumeMounts"]}
    claims = [each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", ())]
    assert mounted == {*(each["name"] for each in pod["volumes"]), *claims}


def test_names_of_the_example_refer_to_each_other() -> None:
    resources = _build(_FOLDER / "overlays/example")
    by_kind = {each["kind"]: each for each in resources}
    scaled = by_kind["ScaledObject"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == by_kind["Deployment"]["metadata"]["name"]
    assert "replicas" not in by_kind["Deployment"]["spec"]
    (trigger,) = scaled["triggers"]
    authentication = by_kind["TriggerAuthentication"]["metadata"]["name"]
    assert trigger["authenticationRef"]["name"] == authentication
    labels = by_kind["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert by_kind["Service"]["spec"]["selector"].items() <= labels.items()
    assert by_kind["StatefulSet"]["spec"]["replicas"] == 2
    settings = by_kind["ConfigMap"]["data"]["admin.toml"]
    secret = {"HOPBACK_SESSION_SECRET": "s" * 32}
    assert parse_settings(tomllib.loads(settings), secret, "admin.toml").asks_who


def test_docs_create_every_key_of_the_secret() -> None:
    page = (ROOT / "docs/how-to/kubernetes.md").read_text()
    created = set(re.findall(r"--from-literal=(\w+)=", page))
    used = {
        each["valueFrom"]["secretKeyRef"]["key"]
        for container in _containers(_build(_FOLDER / "overlays/example"))
        for each in container["env"]
        if "valueFrom" in each
    }
    assert created == used
