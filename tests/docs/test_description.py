"""The description of the package on an index: nothing in it leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path

from tools.description import description

_ROOT = Path(__file__).parents[2]
_README = (_ROOT / "README.md").read_text(encoding="utf-8")
_TARGET = re.compile(r"\]\(([^)\s]+)\)")


def test_an_index_gets_no_link_to_a_file_that_it_does_not_have() -> None:
    """Links become text, pictures go, and it is said where they are."""
    made = description(_README)
    assert [one for one in _TARGET.findall(made) if "://" not in one] == []
    assert "Keep FastStream, aio-pika" in made
    assert "![" not in made
    assert made.rstrip().endswith("of the source distribution.")


def test_with_an_address_every_link_leads_into_the_repository() -> None:
    """To a file that is there."""
    base = "https://forge.example/hopback"
    made = description(_README, base + "/")
    found = [one.removeprefix(base) for one in _TARGET.findall(made) if one.startswith(base)]
    assert len(found) == len([one for one in _TARGET.findall(_README) if "://" not in one])
    for one in found:
        _, kind, _, path = one.split("/", 3)
        assert (_ROOT / path).exists()
        assert kind == ("raw" if path.endswith((".svg", ".png")) else "blob")
