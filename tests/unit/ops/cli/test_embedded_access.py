"""Commands on dead letters find the embedded broker of `hopback run` in their directory."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hopback.cli.app import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.socket

_APP = """
from hopback import App, Park
app = App("shop")

@app.handler("orders", retry=["1s"])
async def handle(order: dict) -> None:
    raise Park("article 4711 is unknown")
"""


def test_embedded_names_the_broker_and_application_that_run_in_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.py").write_text(_APP)
    monkeypatch.delenv("HOPBACK_BROKER", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    store = ["--store", f"sqlite:///{tmp_path}/jobs.db"]
    command = [sys.executable, "-m", "hopback", "run", "shop:app", "--broker", "embedded"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stderr is not None
            while "consumer.started" not in running.stderr.readline():
                pass
            assert run(["publish", "orders", '{"id": 13}']) == 0
            while "delivery.parked" not in running.stderr.readline():
                pass
            capsys.readouterr()
            listing = ["dlq", "ls", "--format", "json", *store]
            assert run([*listing, "--broker", "embedded"]) == 0
            (queue,) = json.loads(capsys.readouterr().out)
            assert (queue["queue"], queue["messages"]) == ("orders.dlq", 1)
            assert run(listing) == 2
            assert "--broker embedded" in capsys.readouterr().err
        finally:
            running.terminate()
            running.communicate()


def test_embedded_is_refused_where_no_embedded_broker_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    store = ["--store", f"sqlite:///{tmp_path}/jobs.db"]
    assert run(["dlq", "ls", "--broker", "embedded", *store]) == 7
    captured = capsys.readouterr()
    assert f"is not running in {tmp_path}" in captured.err
    assert not captured.out
