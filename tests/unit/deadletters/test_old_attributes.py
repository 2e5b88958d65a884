"""Attributes that were called otherwise are still found, with a warning."""

from __future__ import annotations

import pytest

from hopback.deadletters import MessageView, Page
from hopback.deadletters.codec import to_json
from hopback.deadletters.message import read_dead_letter
from hopback.message import Received


def test_the_old_names_of_a_page_and_a_message_are_found() -> None:
    """They give what the new names give; JSON has never known either."""
    dead_letter = read_dead_letter(Received("orders.dlq", "", "orders", b"{}"), 1)
    page = Page((dead_letter,), 1, None)
    with pytest.warns(DeprecationWarning, match=r"Page.letters is called dead_letters now"):
        assert page.letters == page.dead_letters
    view = MessageView(
        dead_letter=dead_letter,
        sentence="",
        timeline=(),
        failure=None,
        way=None,
        properties={},
        headers=(),
        more_headers=0,
        payload=None,
        payload_encoding="binary",
        payload_bytes=2,
    )
    with pytest.warns(DeprecationWarning, match=r"MessageView.letter is called dead_letter now"):
        assert view.letter == view.dead_letter
    assert "letter" in to_json(view)
    assert "items" in to_json(page)
