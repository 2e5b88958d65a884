"""The READMEs of the systems: their commands work, and their tables and diagrams match the code."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hopback.broker import EmbeddedBroker
from hopback.designs import DESIGNS
from hopback.observe.metrics import Metrics
from hopback.systems import HOMES, load_system
from hopback.systems.demo.web import DemoWeb, open_socket, serve_on
from hopback.systems.host import Host
from hopback.topology.diagram import draw_flow, draw_sequence, draw_states
from tests.acceptance.browsing import open_browser
from tests.docs.pages import ROOT, Block, blocks, matches, steps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.systems.host import System

_NAMES = ("event-bus", "file-pipeline", "freeflow", "raffle", "ratatoskr")
_CURL = 'curl() { command curl -sS --max-time 10 %s"$@"; }\n'
_TIMEOUT_S = 60.0
_DRAWN = re.compile(r"\(`(hopback topology diagram [^`]+)`\):\n\n```mermaid\n(.*?)```", re.DOTALL)
_MERMAID = ROOT / "tools" / "site" / "vendor" / "mermaid.tiny.js"
_DRAW = {"flow": draw_flow, "sequence": draw_sequence, "states": draw_states}


def _home(name: str) -> Path:
    return Path(str(import_module(HOMES[name]).__file__)).parent


def readme(name: str) -> str:
    """Return the page of a system."""
    return (_home(name) / "README.md").read_text(encoding="utf-8")


@asynccontextmanager
async def _run_system(name: str, folder: Path) -> AsyncIterator[str]:
    """Run the system with its traffic, as the demo does, and yield the URL of its web application."""
    web, listening, system = DemoWeb(Metrics()), open_socket("127.0.0.1", 0), load_system(name)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/{name}"
    host = Host(EmbeddedBroker(), f"sqlite:///{folder}/{name}.db", folder, url)
    async with serve_on(web, listening), system.start(host) as started:
        assert started.web is not None
        web.add(name, started.web)
        traffic = asyncio.create_task(_traffic(system, host))
        try:
            yield url
        finally:
            # Repeat the cancellation: one that coincides with the end of a database call is lost.
            while not traffic.done():
                traffic.cancel()
                await asyncio.wait({traffic}, timeout=1)


async def _traffic(system: System, host: Host) -> None:
    await system.traffic(host)


@pytest.mark.parametrize("name", _NAMES)
async def test_commands_of_readme_print_the_shown_output(name: str, tmp_path: Path) -> None:
    """All commands succeed."""
    async with _run_system(name, tmp_path) as url:
        await asyncio.to_thread(run_readme, readme(name), url)


def run_readme(text: str, url: str, **addresses: str) -> None:
    """Run every command of a page once, in one shell."""
    environment = {**os.environ, "URL": url, "RECEIVER": f"{url}/receiver", **addresses}
    with subprocess.Popen(
        ["sh", "-eu"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as shell:
        assert shell.stdin is not None
        shell.stdin.write(_CURL % "--fail-with-body ")
        for block in blocks(text):
            if block.language == "sh":
                _run_block(shell, block)
            elif block.language == "console":
                for step in steps(block):
                    _check_output(step.command, step.expected, environment)
        shell.stdin.close()
        assert shell.wait(10) == 0


def _run_block(shell: subprocess.Popen[str], block: Block) -> None:
    """Run a block in the shell. The shell ends at the first failed command."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(f"{block.text}\necho; echo __done__\n")
    shell.stdin.flush()
    printed = []
    for line in shell.stdout:
        if line == "__done__\n":
            return
        printed.append(line)
    raise AssertionError(block.text + "".join(printed))


def _check_output(command: str, expected: str, environment: dict[str, str]) -> None:
    """Run a command once and compare its output with the page."""
    ran = subprocess.run(
        ["sh", "-c", _CURL % "" + command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert matches(expected, ran.stdout), f"$ {command}\n{ran.stdout}{ran.stderr}"


@pytest.mark.parametrize("name", _NAMES)
def test_diagrams_match_the_output_of_their_commands(name: str) -> None:
    text = readme(name)
    found = _DRAWN.findall(text)
    assert len(found) == text.count("```mermaid") >= 2
    for command, shown in found:
        words = command.split()
        options = dict(zip(words[4::2], words[5::2], strict=True))
        draw: Any = _DRAW[options.get("--diagram", "flow")]
        queue = (options["--queue"],) if "--queue" in options else ()
        assert draw(DESIGNS[name].build(), *queue).strip() == shown.strip()


def test_mermaid_draws_every_diagram_in_dark_theme() -> None:
    """With the library of Mermaid's command, its online editor and editor extensions."""
    with open_browser() as browser:
        page = browser.new_page()
        page.add_script_tag(path=_MERMAID)
        page.evaluate("mermaid.initialize({startOnLoad: false, theme: 'dark'})")
        for name in _NAMES:
            for number, (command, diagram) in enumerate(_DRAWN.findall(readme(name))):
                drawn = page.evaluate(
                    "async ([id, text]) => (await mermaid.render(id, text)).svg",
                    [f"{name}-{number}", diagram],
                )
                assert "<svg" in drawn, command


class _RequestedVariables(dict[str, str]):
    """An empty environment that records the requested names."""

    def __init__(self) -> None:
        self.names = {"HOPBACK_BROKER"}
        super().__init__()

    def get(self, name: str, default: Any = None) -> Any:
        """Record the name and return the default."""
        self.names.add(name)
        return default


@pytest.mark.parametrize("name", _NAMES)
def test_readme_lists_every_variable_and_every_part(name: str) -> None:
    text, variables = readme(name), _RequestedVariables()
    home = import_module(f"{HOMES[name]}.settings")
    [settings] = (
        each
        for each in vars(home).values()
        if isinstance(each, type) and each.__module__ == home.__name__ and hasattr(each, "read")
    )
    settings.read(variables)
    rows = re.findall(r"^\| (`[A-Z0-9_]+`(?:, `[A-Z0-9_]+`)*) \|", text, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"[A-Z0-9_]+", row)} == variables.names
    for part in load_system(name).parts:
        assert f"`{part.command}" in text


@pytest.mark.parametrize("name", _NAMES)
def test_links_of_readme_lead_to_files(name: str) -> None:
    links = re.findall(r"\]\(([\w.]+)\)", readme(name))
    assert links
    assert [link for link in links if not (_home(name) / link).exists()] == []
