"""The canonical form of header values, which identifies dead letters."""

from __future__ import annotations

from hypothesis import given

from hopback.fields import canonical, canonical_text
from tests.properties.field_values import field_values


@given(field_values)
def test_canonical_text_is_the_repr_of_the_form(value: object) -> None:
    """Stored jobs find their messages by this text, so it never changes."""
    assert canonical_text(value) == repr(canonical(value))  # type: ignore[arg-type]
