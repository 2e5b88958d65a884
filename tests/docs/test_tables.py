"""The tables of the reference match the code."""

from __future__ import annotations

import re

import pytest

from hopback.observe.events import EVENTS
from tests.docs.tables import TABLES, read_page, render_page


@pytest.mark.parametrize("name", TABLES)
def test_table_matches_the_code(name: str) -> None:
    """`python -m tests.docs.tables` updates them."""
    assert read_page(name) == render_page(name)


def test_every_field_of_every_event_is_explained() -> None:
    """The page explains no other fields."""
    _, _, explained = read_page("events").partition("## Fields")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", explained, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == {field for event in EVENTS.values() for field in event.fields}
