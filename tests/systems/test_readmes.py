"""The READMEs of the systems: their commands work, their tables and diagrams are those of the code."""

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
_PATIENCE_S = 60.0
_DRAWN = re.compile(r"\(`(hopback topology diagram [^`]+)`\):\n\n```mermaid\n(.*?)```", re.DOTALL)
_MERMAID = ROOT / "tools" / "site" / "vendor" / "mermaid.tiny.js"
_DRAW = {"flow": draw_flow, "sequence": draw_sequence, "states": draw_states}


def _home(name: str) -> Path:
    return Path(str(import_module(HOMES[name]).__file__)).parent


def readme(name: str) -> str:
    """The page of a system."""
    return (_home(name) / "README.md").read_text(encoding="utf-8")


@asynccontextmanager
async def _running(name: str, folder: Path) -> AsyncIterator[str]:
    """The system as the demo runs it, with its traffic; the address of its web application."""
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
            # Again until it ends: a cancellation that meets a database call just ending is lost.
            while not traffic.done():
                traffic.cancel()
                await asyncio.wait({traffic}, timeout=1)


async def _traffic(system: System, host: Host) -> None:
    await system.traffic(host)


@pytest.mark.parametrize("name", _NAMES)
async def test_commands_of_readme_print_the_shown_output(name: str, tmp_path: Path) -> None:
    """Every command succeeds; where the page shows what is printed, that is printed."""
    async with _running(name, tmp_path) as url:
        await asyncio.to_thread(play, readme(name), url)


def play(text: str, url: str, **addresses: str) -> None:
    """Follow a page to the letter: every command once, in one shell."""
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
                _succeed(shell, block)
            elif block.language == "console":
                for step in steps(block):
                    _show(step.command, step.expected, environment)
        shell.stdin.close()
        assert shell.wait(10) == 0


def _succeed(shell: subprocess.Popen[str], block: Block) -> None:
    """Run a block in the reader's shell; the shell ends at the first command that fails."""
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


def _show(command: str, expected: str, environment: dict[str, str]) -> None:
    """Run a command once, as a reader does: it prints what the page shows."""
    ran = subprocess.run(
        ["sh", "-c", _CURL % "" + command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    assert matches(expected, ran.stdout), f"$ {command}\n{ran.stdout}{ran.stderr}"


@pytest.mark.parametrize("name", _NAMES)
def test_the_diagrams_are_generated(name: str) -> None:
    """What the command beside each diagram draws now stands in the page."""
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
    """Mermaid's command, its online editor and the extensions of editors use this library."""
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


class _Asked(dict[str, str]):
    """Variables of which none is set; it remembers which were asked for."""

    def __init__(self) -> None:
        self.names = {"HOPBACK_BROKER"}
        super().__init__()

    def get(self, name: str, default: Any = None) -> Any:
        """Nothing."""
        self.names.add(name)
        return default


@pytest.mark.parametrize("name", _NAMES)
def test_every_variable_and_every_part_is_listed(name: str) -> None:
    """Those that the settings read, and those that the system names."""
    text, asked = readme(name), _Asked()
    home = import_module(f"{HOMES[name]}.settings")
    [settings] = (
        each
        for each in vars(home).values()
        if isinstance(each, type) and each.__module__ == home.__name__ and hasattr(each, "read")
    )
    settings.read(asked)
    rows = re.findall(r"^\| (`[A-Z0-9_]+`(?:, `[A-Z0-9_]+`)*) \|", text, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"[A-Z0-9_]+", row)} == asked.names
    for part in load_system(name).parts:
        assert f"`{part.command}" in text


@pytest.mark.parametrize("name", _NAMES)
def test_links_of_readme_lead_to_files(name: str) -> None:
    """No link leads nowhere."""
    links = re.findall(r"\]\(([\w.]+)\)", readme(name))
    assert links
    assert [link for link in links if not (_home(name) / link).exists()] == []
