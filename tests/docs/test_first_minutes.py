"""The commands of the first pages: run in one terminal, publish from another."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, blocks, run_command

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.socket

_TIMEOUT_S = 60.0


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("README.md", ["order 7, run 1", "invoice for order 7", "order 13, run 1"]),
        ("docs/tutorial/first-handler.md", ["order 7, run 1", "the warehouse does not answer"]),
    ],
)
def test_commands_of_the_page_publish_and_handle_orders(
    page: str, printed: list[str], tmp_path: Path
) -> None:
    """The handler prints the lines that the page shows."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in blocks(text):
        if block.title == "shop.py":
            (tmp_path / block.title).write_text(block.text)
    commands = [
        line for block in blocks(text) if block.language == "sh" for line in block.text.splitlines()
    ]
    (start,) = (one for one in commands if one.endswith("--broker embedded"))
    publishes = [one for one in commands if one.startswith("hopback publish ")]
    out = tmp_path / "out"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with out.open("wb") as stream:
        service = subprocess.Popen(
            ["sh", "-c", f"exec {start}"],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until(lambda: "consumer.started" in out.read_text(), out)
        assert publishes
        for command in publishes:
            output, code = run_command(tmp_path, command)
            assert code == 0, output
        for line in printed:
            _wait_until(lambda line=line: line in out.read_text(), out)  # type: ignore[misc]
    finally:
        service.terminate()
        assert service.wait(_TIMEOUT_S) == 0


def _wait_until(condition: Callable[[], bool], out: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(out.read_text())
        time.sleep(0.05)
