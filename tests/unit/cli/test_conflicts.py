"""`hopback run` and `hopback topology migrate` on a broker whose objects differ."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from hopback.cli.app import run
from hopback.testing.threads import BrokerThread

if TYPE_CHECKING:
    from pathlib import Path

_APP = """
from hopback import App
app = App("shop")

@app.handler("orders", retry=["1s"], bind={"shop.events": "order.*"})
async def handle(order: dict) -> None: ...
"""
_APP_NAME = "conflicting_shop:app"
_QUEUE: dict[str, object] = {"name": "orders", "vhost": "/", "durable": True, "arguments": {}}
_EXCHANGE = {"name": "shop.events", "vhost": "/", "type": "direct", "durable": True}


@pytest.fixture(autouse=True)
def _app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application in the current directory. It binds a quorum queue to a topic exchange."""
    (tmp_path / "conflicting_shop.py").write_text(_APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "conflicting_shop", raising=False)


@pytest.mark.parametrize(
    ("found", "recommends"),
    [
        ({"queues": [_QUEUE]}, (True, False)),
        ({"exchanges": [_EXCHANGE]}, (False, True)),
        ({"queues": [_QUEUE], "exchanges": [_EXCHANGE]}, (True, True)),
    ],
    ids=["queue", "exchange", "both"],
)
def test_run_recommends_migration_only_for_queues(
    found: dict[str, object], recommends: tuple[bool, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    with BrokerThread() as broker:
        broker.server.load(found)
        assert run(["run", _APP_NAME, "--broker", broker.url]) == 6
    told = capsys.readouterr().err
    assert f"`hopback topology plan {_APP_NAME}`" in told
    migrate = f"`hopback topology migrate {_APP_NAME}`"
    assert (migrate in told, "No command replaces an exchange" in told) == recommends


def test_migrate_fails_if_only_an_exchange_differs(capsys: pytest.CaptureFixture[str]) -> None:
    with BrokerThread() as broker:
        broker.server.load({"exchanges": [_EXCHANGE]})
        options = ["--broker", broker.url, "--management", broker.http_url]
        migrate = ["topology", "migrate", _APP_NAME, *options]
        assert run([*migrate, "--yes"]) == 6
        told = capsys.readouterr()
        assert "Done" not in told.out
        assert "exchange 'shop.events' differs, and only queues can be migrated: type" in told.err
        assert run([*migrate, "--yes", "-o", "json"]) == 6
        assert capsys.readouterr().out == ""
        assert run([*migrate, "--dry-run"]) == 0
        assert "obstacle: exchange 'shop.events' differs" in capsys.readouterr().out
