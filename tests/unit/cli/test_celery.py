"""`hopback celery check`, run in the process."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from hopback.cli.app import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_Output = pytest.CaptureFixture[str]
_APP = """
from celery import Celery
worker = Celery("shop", broker="amqp://localhost//", set_as_current=False)
worker.conf.task_default_delivery_mode = "transient"
other = 7
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of that name in the current folder."""
    (tmp_path / "celery_shop.py").write_text(_APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("celery_shop", None)


def test_celery_check_prints_findings_and_fails_on_error(capsys: _Output) -> None:
    assert run(["celery", "check", "celery_shop:worker"]) == 1
    said = capsys.readouterr().out
    assert "error: setting `task_default_delivery_mode` [celery-transient]" in said
    assert "Fix: Remove the setting" in said
    assert said.rstrip().splitlines()[-1].startswith("Found 1 error, ")


def test_celery_check_prints_findings_as_json(capsys: _Output) -> None:
    """`--detailed-exit-code` gives any finding an exit code."""
    assert (
        run(["celery", "check", "celery_shop:worker", "-o", "json", "--detailed-exit-code"]) == 10
    )
    found = json.loads(capsys.readouterr().out)
    assert found["application"] == "celery_shop:worker"
    assert found["findings"][0]["rule"] == "celery-transient"


@pytest.mark.parametrize("name", ["celery_shop", "celery_shop:other", "celery_shop:nothing"])
def test_celery_check_without_application_lists_module_names(name: str, capsys: _Output) -> None:
    assert run(["celery", "check", name]) != 0
    said = capsys.readouterr().err
    assert "expected a Celery application" in said
    assert "It has: worker." in said
