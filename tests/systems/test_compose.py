"""The compose file of each system: its commands and environment run as processes, and the README works.

There is no container engine here. What the engine would do is done by hand: each service's entrypoint,
command and environment are taken from the file as they stand, and only the addresses of the network of
containers are replaced, by those of this machine.
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
from tests.systems.processes import get, started
from tests.systems.test_readmes import play, readme

if TYPE_CHECKING:
    from tests.systems.processes import Process

__all__ = ["database_url"]

_DEPLOY = Path(__file__).parents[2] / "deploy"
_GIVEN = {"RABBITMQ_PASSWORD": "rabbit-password", "POSTGRES_PASSWORD": "postgres-password"}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")
_WEB = {"file-pipeline": "gateway"}


def _file(name: str) -> dict[str, Any]:
    """The compose file with its variables set, as the engine reads it."""
    text = (_DEPLOY / f"compose.{name}.yaml").read_text(encoding="utf-8")
    filled = _VARIABLE.sub(lambda found: _GIVEN.get(found[1], found[2] or ""), text)
    read: dict[str, Any] = yaml.safe_load(filled)
    return read


def _parts(name: str) -> dict[str, Any]:
    """The services that are ours; one that is started by hand is left to hands."""
    services = _file(name)["services"]
    return {
        one: said for one, said in services.items() if "build" in said and "profiles" not in said
    }


@pytest.mark.parametrize("name", HOMES)
def test_every_part_of_a_system_is_in_its_compose_file(name: str) -> None:
    """Each by the command that the system names, with what it waits for and where its data is kept."""
    read = _file(name)
    ours = [said for said in read["services"].values() if "build" in said]
    targets = {part.target for part in load_system(name).parts}
    assert {one for said in ours for one in said["command"] if ":" in one and "." in one} >= targets
    for said in ours:
        assert said["depends_on"]["rabbitmq"] == {"condition": "service_healthy"}
        assert str(said["environment"]["HARDENED"]) == "1"
    kept = {
        volume.partition(":")[0]
        for said in read["services"].values()
        for volume in said.get("volumes", ())
    }
    assert kept == set(read["volumes"])


class _Network:
    """Where the services of a file are on this machine, instead of the network of containers."""

    def __init__(self, amqp_url: str, database: str, folder: Path) -> None:
        self._addresses = {
            "amqp://hopback:rabbit-password@rabbitmq:5672/": amqp_url,
            "postgresql://hopback:postgres-password@postgres:5432/hopback": database,
            "/var/lib/hopback/files": str(folder / "files"),
            "0.0.0.0:8080": "127.0.0.1:0",
            "0.0.0.0": "127.0.0.1",
        }
        self.ports: dict[str, str] = {}

    def publish(self, service: str, said: dict[str, Any]) -> None:
        """Give a service that others reach a port of this machine."""
        for port in said.get("ports", ()):
            inside = port.rpartition(":")[2]
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.ports[inside] = str(free.getsockname()[1])
            self._addresses[f"http://{service}:{inside}"] = f"http://127.0.0.1:{self.ports[inside]}"

    def here(self, text: str) -> str:
        """A word of a command, or the value of a variable, on this machine."""
        for there, here in self._addresses.items():
            text = text.replace(there, here)
        return self.ports.get(text, text)


@pytest.mark.broker
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", HOMES)
def test_the_readme_works_on_what_the_compose_file_starts(
    name: str, amqp_url: str, database_url: str, tmp_path: Path
) -> None:
    """Every part a process of its own, on RabbitMQ and PostgreSQL; they end in order."""
    network, parts = _Network(amqp_url, database_url, tmp_path), _parts(name)
    for service, said in parts.items():
        network.publish(service, said)
    with ExitStack() as stack:
        running: dict[str, Process] = {}
        for service, said in parts.items():
            program = said.get("entrypoint", ["hopback"])[0]
            words = [network.here(word) for word in said["command"]]
            settings = {key: network.here(str(value)) for key, value in said["environment"].items()}
            running[service] = stack.enter_context(
                started(tmp_path / service, program, *words, **settings)
            )
        url = f"http://127.0.0.1:{network.ports['8000']}"
        web = running[_WEB.get(name, "web")]
        web.until(lambda: get(url))
        for service, process in running.items():
            if "entrypoint" not in parts[service]:
                process.said('"(consumer.started)"')
        receiver = f"http://127.0.0.1:{network.ports.get('8001', '0')}"
        if "8001" in network.ports:
            web.until(lambda: get(f"{receiver}/wms-orders/events"))
        play(readme(name), url, RECEIVER=receiver)
        for service, process in running.items():
            assert process.end() in (0, -2), (service, process.text)
            # An error of a handler is in a JSON line; one that nobody caught begins a line of its own.
            assert not re.search("^Traceback", process.text, re.MULTILINE), process.text
