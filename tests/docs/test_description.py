"""The description of the package on an index contains no broken links."""

from __future__ import annotations

import re
from pathlib import Path

from tools.description import description

_ROOT = Path(__file__).parents[2]
_README = (_ROOT / "README.md").read_text(encoding="utf-8")
_TARGET = re.compile(r"\]\(([^)\s]+)\)")


def test_relative_links_become_text_without_an_address() -> None:
    """Images are removed, and the last sentence refers to the source distribution."""
    made = description(_README)
    assert [one for one in _TARGET.findall(made) if "://" not in one] == []
    assert "Keep FastStream, aio-pika" in made
    assert "![" not in made
    assert made.rstrip().endswith("of the source distribution.")


def test_relative_links_point_to_existing_files_in_the_repository() -> None:
    base = "https://forge.example/hopback"
    made = description(_README, base + "/")
    found = [one.removeprefix(base) for one in _TARGET.findall(made) if one.startswith(base)]
    assert len(found) == len([one for one in _TARGET.findall(_README) if "://" not in one])
    for one in found:
        _, kind, _, path = one.split("/", 3)
        assert (_ROOT / path).exists()
        assert kind == ("raw" if path.endswith((".svg", ".png")) else "blob")
