"""Types as users' editors see them: pyright, strict, on the installed wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clients.environment import pyright

if TYPE_CHECKING:
    from tests.acceptance.conftest import Installed

pytestmark = pytest.mark.clients

_SERVICE = Path(__file__).with_name("typed_service.py")

_WRONG = """
from hopback import App, Context

app = App("shop")

@app.handler("orders", retry="30s")
async def handle(order: dict[str, int], context: Context) -> None:
    context.publish("invoices", order)

@app.handler("invoices")
async def invoice(order: dict[str, int]) -> int:
    return 1
"""


def _type_errors(installed: Installed, folder: Path) -> list[tuple[int, str]]:
    """Line and rule of every pyright error of the files in a folder."""
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    # It asks the first Python that it finds where packages lie.
    path = f"{installed.python.parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["node", str(pyright()), "--outputjson"],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    said = json.loads(ran.stdout)
    assert said["summary"]["filesAnalyzed"] == 1, ran.stdout + ran.stderr
    return [
        (one["range"]["start"]["line"] + 1, one.get("rule", one["message"]))
        for one in said["generalDiagnostics"]
    ]


def test_typed_service_passes_pyright_strict(installed: Installed, tmp_path: Path) -> None:
    shutil.copy(_SERVICE, tmp_path)
    assert _type_errors(installed, tmp_path) == []


def test_pyright_reports_mistakes_that_lose_messages(installed: Installed, tmp_path: Path) -> None:
    """An unawaited publish, waits as text, a handler that returns a value that is not an outcome."""
    (tmp_path / "wrong.py").write_text(_WRONG)
    found = _type_errors(installed, tmp_path)
    assert [line for line, _ in found if line == 6] == [6]
    assert (8, "reportUnusedCoroutine") in found
    assert {line for line, _ in found} == {6, 8, 10}
