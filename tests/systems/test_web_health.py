"""Health, readiness, metrics, logs and languages of the web parts."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import httpx
import pytest
import uvicorn

from hopback.broker import EmbeddedBroker
from hopback.systems.language import choose_language
from hopback.systems.raffle.api import create_api as raffle_api
from hopback.systems.raffle.settings import RaffleSettings
from hopback.systems.web import opened
from hopback.systems.web_health import log_as_json
from hopback.testing import Fault, in_virtual_time
from tests.systems.test_web_errors import open_web

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hopback.systems.language import Language


@pytest.mark.parametrize("name", ["raffle", "freeflow", "ratatoskr"])
@in_virtual_time
async def test_web_part_reports_health_readiness_and_metrics(name: str, tmp_path: Path) -> None:
    async with open_web(name, f"sqlite:///{tmp_path}/x.db") as (client, broker):
        assert (await client.post("/none", json={})).status_code in (404, 405)
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        await asyncio.sleep(1)  # the part connects and declares, in virtual time
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "ok", "reasons": []})
        metrics = (await client.get("/metrics")).text
        line = 'hopback_web_requests_total{method="GET",path="/readyz",status="200"} 1.0'
        assert line in metrics
        broker.faults.chance(Fault.REFUSE_CONNECTION, 1.0)
        broker.cut()
        await asyncio.sleep(1)
        away = await client.get("/readyz")
        assert (away.status_code, away.json()["reasons"]) == (
            503,
            ["broker: the connection is connecting"],
        )
        assert (await client.get("/healthz")).status_code == 200


@in_virtual_time
async def test_web_part_without_database_is_not_ready(tmp_path: Path) -> None:
    async with open_web("raffle", f"sqlite:///{tmp_path}/missing/x.db") as (client, _):
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert "database: the database does not answer" in answer.text


@pytest.mark.parametrize(
    ("accepted", "default", "chosen"),
    [
        ("", "en", "en"),
        ("", "pt", "pt"),
        ("pt-BR,pt;q=0.9,en;q=0.8", "en", "pt"),
        ("en-GB, pt;q=0.5", "pt", "en"),
        ("de, fr;q=0.5", "pt", "pt"),
        ("pt;q=0, en;q=0.1", "pt", "en"),
        ("pt;q=0", "pt", "en"),
        ("pt-BR;q=0.3, en;q=0.5, pt;q=0.9", "en", "pt"),
        ("pt;q=much", "en", "en"),
    ],
)
@in_virtual_time
async def test_accept_language_selects_language_of_error(
    accepted: str, default: Language, chosen: Language, tmp_path: Path
) -> None:
    settings = RaffleSettings(f"sqlite:///{tmp_path}/x.db", language=default)
    web = raffle_api(settings, EmbeddedBroker())
    transport = httpx.ASGITransport(web)
    async with opened(web), httpx.AsyncClient(transport=transport, base_url="http://web") as client:
        for path, english, portuguese in (
            ("/api/v1/raffles/none", "no such raffle", "sorteio inexistente"),
            ("/none", "no such path", "caminho inexistente"),
        ):
            answer = await client.get(path, headers={"accept-language": accepted})
            assert answer.status_code == 404
            assert answer.headers["content-language"] == chosen
            assert answer.json() == {"error": portuguese if chosen == "pt" else english}


def test_unknown_language_of_client_gives_default_language() -> None:
    assert choose_language("*;q=0.5, xx", ("pt", "en")) == "pt"


_ACCESS = '%s - "%s %s HTTP/%s" %d'


@pytest.fixture
def restored_logs() -> Iterator[None]:
    """Restore the loggers, which belong to the process."""
    loggers = [logging.getLogger(name) for name in ("", "uvicorn", "uvicorn.access")]
    before = [
        (one, one.level, list(one.handlers), list(one.filters), one.propagate) for one in loggers
    ]
    yield
    for logger, level, handlers, filters, propagate in before:
        logger.setLevel(level)
        logger.handlers[:], logger.filters[:], logger.propagate = handlers, filters, propagate


@pytest.mark.usefixtures("restored_logs")
def test_log_of_web_process_is_json_without_probes(capsys: pytest.CaptureFixture[str]) -> None:
    uvicorn.Config("parts:create_web")
    log_as_json()
    access = logging.getLogger("uvicorn.access")
    access.info(_ACCESS, "127.0.0.1:5", "GET", "/readyz", "1.1", 200)
    access.info(_ACCESS, "127.0.0.1:5", "GET", "/documents", "1.1", 200)
    logging.getLogger("hopback.systems").error("the broker is away")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(one["level"], one["logger"]) for one in lines] == [
        ("info", "uvicorn.access"),
        ("error", "hopback.systems"),
    ]
    assert "/documents" in lines[0]["message"]


@pytest.mark.usefixtures("restored_logs")
def test_no_access_log_of_web_server_is_respected(capsys: pytest.CaptureFixture[str]) -> None:
    """`uvicorn --no-access-log` removes the handlers of its logger."""
    uvicorn.Config("parts:create_web", access_log=False)
    log_as_json()
    access = logging.getLogger("uvicorn.access")
    access.info(_ACCESS, "127.0.0.1:5", "GET", "/documents", "1.1", 200)
    assert not access.hasHandlers()
    logging.getLogger("uvicorn.error").info("started")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "started"
