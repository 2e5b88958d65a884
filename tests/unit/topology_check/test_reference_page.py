"""The reference page of hazards equals the rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hopback.topology.hazards import RULES
from hopback.topology.hazards.rule import HazardRule, format_severities

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "hazards.md"


def sections() -> dict[str, str]:
    """The text under each rule's heading, by its name, in the order of the page."""
    parts = re.split(r"^### `([^`]+)`$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_reference_page_has_every_rule() -> None:
    assert list(sections()) == [rule.name for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_reference_page_has_severity_and_fix(rule: HazardRule) -> None:
    text = sections()[rule.name]
    assert text.strip().startswith(f"Severity: **{format_severities(rule.severities)}**.")
    told = re.findall(r"^- \*\*(.+?)\*\* \S", text, flags=re.MULTILINE)
    assert told == ["Effect.", "Cause.", "Fix."]
