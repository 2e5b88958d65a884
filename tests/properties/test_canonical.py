"""The canonical form of header values, by which dead letters are told apart."""

from __future__ import annotations

from hypothesis import given

from hopback.fields import canonical, canonical_text
from tests.properties.field_values import field_values


@given(field_values)
def test_the_text_is_that_of_the_form(value: object) -> None:
    """Jobs that an earlier version began find their messages by the text it wrote: it never changes."""
    assert canonical_text(value) == repr(canonical(value))  # type: ignore[arg-type]
