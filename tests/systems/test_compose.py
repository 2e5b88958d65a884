"""The compose file of each system: its commands and environments run as processes, and the README
works.

The tests do not need a container engine. They take each service's entrypoint, command and
environment from the file and replace only the addresses of the container network.
"""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]

from hopback.systems import HOMES, load_system
from tests.integration.database import database_url
from tests.systems.processes import get, start_process
from tests.systems.test_readmes import readme, run_readme

if TYPE_CHECKING:
    from tests.systems.processes import Process

__all__ = ["database_url"]

_DEPLOY = Path(__file__).parents[2] / "deploy"
_GIVEN = {"RABBITMQ_PASSWORD": "rabbit-password", "POSTGRES_PASSWORD": "postgres-password"}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")
_WEB = {"file-pipeline": "gateway"}


def _file(name: str) -> dict[str, Any]:
    """Return the parsed compose file with its variables set."""
    text = (_DEPLOY / f"compose.{name}.yaml").read_text(encoding="utf-8")
    filled = _VARIABLE.sub(lambda found: _GIVEN.get(found[1], found[2] or ""), text)
    read: dict[str, Any] = yaml.safe_load(filled)
    return read


def _parts(name: str) -> dict[str, Any]:
    """Return the services of Hopback that start automatically."""
    services = _file(name)["services"]
    return {
        one: service
        for one, service in services.items()
        if "build" in service and "profiles" not in service
    }


@pytest.mark.parametrize("name", HOMES)
def test_compose_file_contains_every_part_of_its_system(name: str) -> None:
    """With the part's command, its dependencies and its volumes."""
    read = _file(name)
    built = [service for service in read["services"].values() if "build" in service]
    targets = {part.target for part in load_system(name).parts}
    assert {
        one for service in built for one in service["command"] if ":" in one and "." in one
    } >= targets
    for service in built:
        assert service["depends_on"]["rabbitmq"] == {"condition": "service_healthy"}
        assert str(service["environment"]["HARDENED"]) == "1"
    volumes = {
        volume.partition(":")[0]
        for service in read["services"].values()
        for volume in service.get("volumes", ())
    }
    assert volumes == set(read["volumes"])


class _Network:
    """Addresses on this machine for the services of a file."""

    def __init__(self, amqp_url: str, database: str, folder: Path) -> None:
        self._addresses = {
            "amqp://hopback:rabbit-password@rabbitmq:5672/": amqp_url,
            "postgresql://hopback:postgres-password@postgres:5432/hopback": database,
            "/var/lib/hopback/files": str(folder / "files"),
            "0.0.0.0:8080": "127.0.0.1:0",
            "0.0.0.0": "127.0.0.1",
        }
        self.ports: dict[str, str] = {}

    def publish(self, service: str, definition: dict[str, Any]) -> None:
        """Allocate a local port for a service with published ports."""
        for port in definition.get("ports", ()):
            inside = port.rpartition(":")[2]
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.ports[inside] = str(free.getsockname()[1])
            self._addresses[f"http://{service}:{inside}"] = f"http://127.0.0.1:{self.ports[inside]}"

    def translate(self, text: str) -> str:
        """Replace container addresses in a word of a command or a value of a variable."""
        for container, local in self._addresses.items():
            text = text.replace(container, local)
        return self.ports.get(text, text)


@pytest.mark.broker
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", HOMES)
def test_readme_works_with_the_parts_of_the_compose_file(
    name: str, amqp_url: str, database_url: str, tmp_path: Path
) -> None:
    """Every part is a process, with RabbitMQ and PostgreSQL. All end on SIGINT."""
    network, parts = _Network(amqp_url, database_url, tmp_path), _parts(name)
    for service, definition in parts.items():
        network.publish(service, definition)
    with ExitStack() as stack:
        processes: dict[str, Process] = {}
        for service, definition in parts.items():
            program = definition.get("entrypoint", ["hopback"])[0]
            words = [network.translate(word) for word in definition["command"]]
            settings = {
                key: network.translate(str(value))
                for key, value in definition["environment"].items()
            }
            processes[service] = stack.enter_context(
                start_process(tmp_path / service, program, *words, **settings)
            )
        url = f"http://127.0.0.1:{network.ports['8000']}"
        web = processes[_WEB.get(name, "web")]
        web.wait_until(lambda: get(url))
        for service, process in processes.items():
            if "entrypoint" not in parts[service]:
                process.wait_for_output('"(consumer.started)"')
        receiver = f"http://127.0.0.1:{network.ports.get('8001', '0')}"
        if "8001" in network.ports:
            web.wait_until(lambda: get(f"{receiver}/wms-orders/events"))
        run_readme(readme(name), url, RECEIVER=receiver)
        for service, process in processes.items():
            assert process.end() in (0, -2), (service, process.text)
            # Errors of handlers are JSON lines. An unhandled error starts with Traceback.
            assert not re.search("^Traceback", process.text, re.MULTILINE), process.text
