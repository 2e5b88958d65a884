"""The first five minutes, followed to the letter: run in one terminal, publish from another."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, blocks, run_in

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.socket

_PATIENCE_S = 60.0


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("README.md", ["order 7, run 1", "invoice for order 7", "order 13, run 1"]),
        ("docs/tutorial/first-handler.md", ["order 7, run 1", "the warehouse does not answer"]),
    ],
)
def test_what_is_published_is_handled(page: str, printed: list[str], tmp_path: Path) -> None:
    """The commands of the page as they stand; each prints what the page says it does."""
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
        running = subprocess.Popen(
            ["sh", "-c", f"exec {start}"],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        _until(lambda: "consumer.started" in out.read_text(), out)
        assert publishes
        for command in publishes:
            told, code = run_in(tmp_path, command)
            assert code == 0, told
        for line in printed:
            _until(lambda line=line: line in out.read_text(), out)  # type: ignore[misc]
    finally:
        running.terminate()
        assert running.wait(_PATIENCE_S) == 0


def _until(condition: Callable[[], bool], out: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(out.read_text())
        time.sleep(0.05)
