"""Untrusted text is made safe for terminals, JSON, sentences and pages."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.text import (
    count_of,
    escape_unsafe,
    one_line,
    printable,
    safe_lines,
    size_text,
    span_text,
    visible,
)

_EVIL = "a\x1b[2Jb\nc\u202ed\x7f"


def test_control_characters_for_a_terminal_are_replaced() -> None:
    """Escapes, line ends and direction marks become a visible character."""
    assert one_line(_EVIL) == "a�[2Jb�c�d�"
    assert safe_lines("a\x1b\nb") == "a�\nb"


def test_escaped_json_decodes_to_the_same_text() -> None:
    text = json.dumps(_EVIL, ensure_ascii=False)
    assert "\x7f" not in escape_unsafe(text)
    assert json.loads(escape_unsafe(text)) == _EVIL


def test_name_in_a_sentence_is_escaped_like_repr() -> None:
    assert printable("a\tb\x00ü") == "a\\tb\\x00ü"


def test_page_shows_symbols_for_invisible_characters() -> None:
    """ASCII controls as symbols, others as code points."""
    assert visible(_EVIL) == "a␛[2Jb␊c⟨U+202E⟩d␡"
    assert visible("a\n\tb", lines=True) == "a\n\tb"


@given(st.text())
def test_no_unsafe_character_remains(text: str) -> None:
    assert one_line(one_line(text)) == one_line(text)
    assert printable(text).isprintable()
    assert all(ord(each) >= 0x20 and each != "\x7f" for each in visible(text))


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 messages"), (1, "1 message"), (1200, "1,200 messages")]
)
def test_count_has_a_noun_in_the_right_number(number: int, text: str) -> None:
    assert count_of(number) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (256 * 1024, "256 KiB"),
        (3 << 30, "3.0 GiB"),
        (5000 << 30, "5000 GiB"),
    ],
)
def test_size_has_the_fitting_unit(size: int, text: str) -> None:
    assert size_text(size) == text


def test_duration_has_two_significant_digits_and_a_space_before_its_unit() -> None:
    seconds = (0.0, 0.0123, 5, 9.5, 9.97, 90, 150, 700, 7200, 13_000, 200_000)
    assert [span_text(each) for each in seconds] == [
        *("0 s", "0.012 s", "5 s", "9.5 s", "10 s", "90 s"),
        *("2.5 min", "12 min", "2 h", "3.6 h", "2.3 d"),
    ]
