"""The files under `infra/` match the design and can be imported repeatedly."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from hopback import RabbitMQ
from hopback.broker.declare import declare
from hopback.designs import file_pipeline
from hopback.errors import TopologyConflict
from hopback.systems import file_pipeline as system
from hopback.topology import read_definitions, write_definitions

if TYPE_CHECKING:
    from tests.harness.shared import SharedNode

_HOME = Path(system.__path__[0]) / "infra"
_COMPOSE = _HOME / "docker-compose.yml"
_DEFINITIONS = _HOME / "rabbitmq" / "definitions.json"
_SCRIPT = _HOME / "rabbitmq" / "import-definitions.sh"


def test_definitions_file_equals_the_design() -> None:
    """`hopback topology export file-pipeline` writes it."""
    expected, _ = write_definitions(file_pipeline())
    assert json.loads(_DEFINITIONS.read_text(encoding="utf-8")) == expected


def test_definitions_file_contains_exactly_the_topology_of_the_document() -> None:
    """With the names of the document and the arguments and bindings of the design."""
    read = read_definitions(_DEFINITIONS.read_text(encoding="utf-8"))
    design = file_pipeline()
    parts = [
        "upload.commands",
        "validator",
        "thumbnail",
        "extractor",
        "projection",
        "notification",
        "audit",
    ]
    main = [f"q.{part}" for part in parts]
    assert {queue.name for queue in read.queues} == {
        f"{queue}{ending}" for queue in main for ending in ("", ".retry", ".dlq")
    }
    assert {exchange.name: str(exchange.type) for exchange in read.exchanges} == {
        "domain.events": "topic",
        "domain.commands": "topic",
        **{f"{use}.{queue}": "direct" for queue in main for use in ("retry", "dlq")},
    }
    assert read.exchanges == design.exchanges
    assert read.queues == design.queues
    assert sorted(map(str, read.bindings)) == sorted(map(str, design.bindings))


def test_compose_file_has_broker_and_init_service() -> None:
    """`rabbitmq-init` runs the import script when the broker is healthy."""
    text = _COMPOSE.read_text(encoding="utf-8")
    assert "\n  rabbitmq:\n" in text
    assert "\n  rabbitmq-init:\n" in text
    assert "condition: service_healthy" in text
    assert "import-definitions.sh" in text
    assert os.access(_SCRIPT, os.X_OK)


def _import(node: SharedNode, vhost: str, **variables: str) -> subprocess.CompletedProcess[str]:
    address = urlsplit(node.management_url)
    environment = {
        **os.environ,
        "RABBITMQ_MANAGEMENT_URL": f"http://{address.hostname}:{address.port}",
        "RABBITMQ_VHOST": quote(vhost, safe=""),
        "RABBITMQ_TRIES": "1",
        **variables,
    }
    return subprocess.run(
        ["sh", str(_SCRIPT)], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.broker
def test_import_script_succeeds_twice(rabbitmq: SharedNode, vhost: str) -> None:
    """Both runs report the import, and the queues of the broker match the design."""
    for _ in range(2):
        ran = _import(rabbitmq, vhost)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "imported" in ran.stdout
    stored = rabbitmq.management.call("GET", f"/queues/{quote(vhost, safe='')}")
    expected = json.loads(_DEFINITIONS.read_text(encoding="utf-8"))
    assert {one["name"]: one["arguments"] for one in stored} == {
        one["name"]: one["arguments"] for one in expected["queues"]
    }


@pytest.mark.broker
def test_import_script_fails_with_a_hint_on_wrong_password(
    rabbitmq: SharedNode, vhost: str
) -> None:
    """The output does not contain the password."""
    ran = _import(rabbitmq, vhost, RABBITMQ_PASSWORD='wrong"one\\')
    assert ran.returncode == 1
    assert "are user and password right?" in ran.stderr
    assert "wrong" not in ran.stderr + ran.stdout


def _engine() -> list[str] | None:
    """Return the compose command of an available container engine."""
    for name in ("docker", "podman"):
        if shutil.which(name):
            info = subprocess.run([name, "info"], capture_output=True, timeout=60, check=False)
            if info.returncode == 0:
                return [name, "compose", "--project-name", "hopback-test", "--file"]
    return None


def _queues_by_engine(compose: list[str]) -> int:
    """Start the compose file with the engine. Return the number of imported queues."""
    command = [*compose, str(_COMPOSE)]
    try:
        subprocess.run([*command, "up", "--detach", "--wait", "rabbitmq"], check=True)
        subprocess.run([*command, "run", "--rm", "rabbitmq-init"], check=True)
        url = "http://guest:guest@127.0.0.1:15672/api/queues"
        return len(httpx.get(url, trust_env=False).json())
    finally:
        subprocess.run([*command, "down", "--volumes"], check=True)


@pytest.mark.broker
def test_init_service_imports_as_in_the_compose_file(rabbitmq: SharedNode, vhost: str) -> None:
    """With a container engine, or with the entrypoint, volume and environment of the file."""
    if (compose := _engine()) is not None:
        assert _queues_by_engine(compose) == 21
        return
    filled = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", _COMPOSE.read_text(encoding="utf-8"))
    service = yaml.safe_load(filled)["services"]["rabbitmq-init"]
    (mounted,) = service["volumes"]
    folder, inside, _ = mounted.split(":")
    words = [word.replace(inside, str(_HOME / folder)) for word in service["entrypoint"]]
    address = urlsplit(rabbitmq.management_url)
    here = f"http://{address.hostname}:{address.port}"
    settings = {
        key: value.replace("http://rabbitmq:15672", here)
        for key, value in service["environment"].items()
    }
    environment = {**os.environ, **settings, "RABBITMQ_VHOST": quote(vhost, safe="")}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    stored = rabbitmq.management.call("GET", f"/queues/{quote(vhost, safe='')}")
    assert len(stored) == 21


@pytest.mark.broker
async def test_hardened_form_is_refused_beside_the_imported_one(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    """The error names the differences. No queue changes."""
    assert _import(rabbitmq, vhost).returncode == 0
    connection = await RabbitMQ(amqp_url).connect("test")
    try:
        with pytest.raises(TopologyConflict, match=r"q\.validator"):
            await declare(connection, file_pipeline(hardened=True))
        await declare(connection, file_pipeline())
    finally:
        await connection.close()
