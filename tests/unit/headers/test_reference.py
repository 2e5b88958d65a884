"""The reference page of headers equals the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopback.designs import DESIGNS
from hopback.headers.names import OURS

_PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "headers.md").read_text("utf-8")
_DESIGNS = sorted(
    {
        header
        for design in DESIGNS.values()
        for hardened in (False, True)
        for plan in design.build(hardened=hardened).plans
        for header in (
            plan.count_header,
            *(stamp.header for stamp in (*plan.retry_stamps, *plan.park_stamps)),
        )
        if header is not None
    }
)


@pytest.mark.parametrize("header", sorted(OURS))
def test_every_hopback_header_is_documented(header: str) -> None:
    assert f"| `{header}` |" in _PAGE


@pytest.mark.parametrize("header", _DESIGNS)
def test_every_header_of_designs_is_documented(header: str) -> None:
    assert f"`{header}`" in _PAGE


def test_every_documented_header_exists() -> None:
    rows = [line.split("`")[1] for line in _PAGE.splitlines() if line.startswith("| `hopback-")]
    assert sorted(rows) == sorted(OURS)
