"""The parts of the systems as separate processes, on RabbitMQ and PostgreSQL."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import httpx
import pytest

from hopback import App
from hopback.systems import HOMES, load_system
from tests.integration.database import database_url
from tests.systems.processes import get, start_process

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["database_url"]


@pytest.mark.parametrize("name", HOMES)
def test_every_part_is_the_target_of_its_command(name: str) -> None:
    """`hopback run` finds an application, a web server a callable."""
    system = load_system(name)
    assert system.name == name
    for part in system.parts:
        module, _, attribute = part.target.partition(":")
        found = getattr(import_module(module), attribute)
        assert callable(found) if part.is_web else isinstance(found, App), part.target
        assert part.command.startswith("uvicorn" if part.is_web else "hopback run")


@pytest.mark.broker
@pytest.mark.xdist_group("systems")
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_raffle_parts_run_as_separate_processes(
    amqp_url: str, database_url: str, tmp_path: Path
) -> None:
    """The API and the consumer are separate processes. A user passes from one to the other."""
    settings = {
        "HOPBACK_BROKER": amqp_url,
        "DATABASE_URL": database_url,
        "USERS_BATCH_TIMEOUT_MS": "50",
        "HARDENED": "yes",
    }
    consumer = ("hopback", "run", "hopback.systems.raffle.parts:consumer", "--http", "0")
    web = ("uvicorn", "--factory", "hopback.systems.raffle.parts:create_web", "--port", "0")
    with (
        start_process(tmp_path / "consumer", *consumer, **settings) as consumer_process,
        start_process(tmp_path / "web", *web, **settings) as web_process,
    ):
        probe = consumer_process.wait_for_output(r"listening on (http://[^\s\"]+)")
        consumer_process.wait_for_output('"(consumer.started)"')
        url = web_process.wait_for_output(r"running on (http://\S+)")
        body = {"name": "Ana", "email": "ana@email.com"}
        answer = httpx.post(f"{url}/api/v1/users", json=body, trust_env=False)
        assert answer.status_code == 200, answer.text
        user = f"{url}/api/v1/users/{answer.json()['id']}"
        web_process.wait_until(
            lambda: (found := get(user)) is not None and found.status_code == 200
        )
        metrics = get(f"{probe}/metrics")
        assert metrics is not None
        done = 'hopback_deliveries_total{outcome="done",queue="raffle_queue"} 1.0'
        assert done in metrics.text
        assert consumer_process.end() == 0
        assert web_process.end() in (0, -2)
