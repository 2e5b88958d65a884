"""The tables of the reference are those of the code."""

from __future__ import annotations

import re

import pytest

from hopback.observe.events import EVENTS
from tests.docs.tables import TABLES, current, rendered


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_that_of_the_code(name: str) -> None:
    """`python -m tests.docs.tables` writes what is missing."""
    assert current(name) == rendered(name)


def test_every_field_of_every_event_is_explained() -> None:
    """The page says what each field means, and of no field that there is not."""
    _, _, explained = current("events").partition("## Fields")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", explained, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == {field for event in EVENTS.values() for field in event.fields}
