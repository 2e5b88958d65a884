"""The README: its diagrams are those of the design, its tables those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import hopback.systems.file_pipeline.settings as settings_module
from hopback.patterns import file_pipeline
from hopback.systems.file_pipeline.demo import SYSTEM
from hopback.systems.file_pipeline.infrastructure import HOME
from hopback.topology.diagram import draw_flow, draw_sequence

_README = (HOME.parent / "README.md").read_text(encoding="utf-8")


def test_the_diagrams_are_generated() -> None:
    """What `hopback topology diagram` draws now stands in the page."""
    shown = re.findall(r"```mermaid\n(.*?)\n```", _README, flags=re.DOTALL)
    topology = file_pipeline()
    drawn = [draw_sequence(topology, "q.thumbnail"), draw_flow(topology)]
    assert [text.strip() for text in shown] == [text.strip() for text in drawn]


def test_every_part_is_listed_with_its_command() -> None:
    """As the system describes itself."""
    assert re.findall(r"`((?:uvicorn|hopback run) [^`]+)`", _README) == [
        part.command for part in SYSTEM.parts
    ]


def test_every_variable_is_listed() -> None:
    """Those that the settings read, and the broker's."""
    source = Path(settings_module.__file__).read_text(encoding="utf-8")
    read = set(re.findall(r'given\.\w+\("([A-Z_]+)"', source))
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", _README, flags=re.MULTILINE)) == {
        *read,
        "HOPBACK_BROKER",
    }


def test_every_file_it_points_to_is_there() -> None:
    """No link leads nowhere."""
    links = re.findall(r"\]\(([\w.]+)\)", _README)
    assert links
    assert [name for name in links if not (HOME.parent / name).exists()] == []
