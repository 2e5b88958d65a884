"""The files under `infra/`: equal to the design, and importable as often as one likes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from hopback import RabbitMQ
from hopback.broker.declare import declare
from hopback.designs import file_pipeline
from hopback.errors import TopologyConflict
from hopback.systems.file_pipeline.infrastructure import DEFINITIONS, HOME, definitions
from hopback.topology import read_definitions

if TYPE_CHECKING:
    from tests.harness.shared import SharedNode

_COMPOSE = HOME / "docker-compose.yml"
_SCRIPT = HOME / "rabbitmq" / "import-definitions.sh"


def test_definitions_file_equals_the_design() -> None:
    """`python -m hopback.systems.file_pipeline.infrastructure` writes it."""
    assert DEFINITIONS.read_text(encoding="utf-8") == definitions()


def test_the_definitions_are_the_documents_topology() -> None:
    """They contain exactly the names of the document and the arguments and bindings of the design."""
    read = read_definitions(DEFINITIONS.read_text(encoding="utf-8"))
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


def test_the_compose_file_has_the_two_services() -> None:
    """`rabbitmq`, and `rabbitmq-init` which runs the script once the broker is up."""
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
def test_the_script_imports_twice_into_a_broker(rabbitmq: SharedNode, vhost: str) -> None:
    """Both times it says so, and the broker holds what the design has."""
    for _ in range(2):
        ran = _import(rabbitmq, vhost)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "imported" in ran.stdout
    stored = rabbitmq.management.call("GET", f"/queues/{quote(vhost, safe='')}")
    expected = json.loads(definitions())
    assert {one["name"]: one["arguments"] for one in stored} == {
        one["name"]: one["arguments"] for one in expected["queues"]
    }


@pytest.mark.broker
def test_import_script_fails_with_a_hint_on_wrong_password(
    rabbitmq: SharedNode, vhost: str
) -> None:
    """A wrong password: it gives up with words, and shows no password."""
    ran = _import(rabbitmq, vhost, RABBITMQ_PASSWORD='wrong"one\\')
    assert ran.returncode == 1
    assert "are user and password right?" in ran.stderr
    assert "wrong" not in ran.stderr + ran.stdout


def _engine() -> list[str] | None:
    """Return the compose command of a container engine that answers."""
    for name in ("docker", "podman"):
        if shutil.which(name):
            asked = subprocess.run([name, "info"], capture_output=True, timeout=60, check=False)
            if asked.returncode == 0:
                return [name, "compose", "--project-name", "hopback-test", "--file"]
    return None


def _queues_by_engine(compose: list[str]) -> int:
    """Start the compose file by the engine. Return the number of imported queues."""
    command = [*compose, str(_COMPOSE)]
    try:
        subprocess.run([*command, "up", "--detach", "--wait", "rabbitmq"], check=True)
        subprocess.run([*command, "run", "--rm", "rabbitmq-init"], check=True)
        url = "http://guest:guest@127.0.0.1:15672/api/queues"
        return len(httpx.get(url, trust_env=False).json())
    finally:
        subprocess.run([*command, "down", "--volumes"], check=True)


@pytest.mark.broker
def test_the_init_service_imports_as_the_compose_file_has_it(
    rabbitmq: SharedNode, vhost: str
) -> None:
    """By a container engine, or by the steps of the file: entrypoint, mounted folder, environment."""
    if (compose := _engine()) is not None:
        assert _queues_by_engine(compose) == 21
        return
    filled = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", _COMPOSE.read_text(encoding="utf-8"))
    service = yaml.safe_load(filled)["services"]["rabbitmq-init"]
    (mounted,) = service["volumes"]
    folder, inside, _ = mounted.split(":")
    words = [word.replace(inside, str(HOME / folder)) for word in service["entrypoint"]]
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
    """The refusal names the differences and changes no queue."""
    assert _import(rabbitmq, vhost).returncode == 0
    connection = await RabbitMQ(amqp_url).connect("test")
    try:
        with pytest.raises(TopologyConflict, match=r"q\.validator"):
            await declare(connection, file_pipeline(hardened=True))
        await declare(connection, file_pipeline())
    finally:
        await connection.close()
