"""Content types, and shown names of files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.systems.file_pipeline.contents import TYPES, judge, sniff
from hopback.systems.file_pipeline.reception import shown_name
from tests.systems.file_pipeline.samples import gif, jpeg_with_exif, png

_MOST = 1_000_000


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (png(), "image/png"),
        (jpeg_with_exif(), "image/jpeg"),
        (gif(), "image/gif"),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"%PDF-1.7\n%\xe2\xe3", "application/pdf"),
        (b"plain\ttext\r\n", "text/plain"),
        ("schöne Grüße".encode(), "text/plain"),
        (b"", None),
        (b"\x7fELF\x02\x01", None),
        (b"PK\x03\x04zip", None),
        (b"latin-1: \xe9", None),
        (b"nul\x00", None),
        pytest.param(b"x" * 100_000 + b"\x00", None, id="nul-at-the-end"),
    ],
)
def test_content_has_the_expected_type(content: bytes, found: str | None) -> None:
    """Known signatures and UTF-8 text without control characters."""
    assert sniff(content) == found


@given(st.text(max_size=60), st.sampled_from([*TYPES, "text/html", ""]), st.binary(max_size=200))
def test_judge_accepts_or_returns_a_rejection_for_any_input(
    name: str, declared: str, content: bytes
) -> None:
    """A rejection has a code and a reason."""
    found = judge(name, declared, content, _MOST)
    assert found is None or (found.code and found.reason)


@given(st.text())
def test_shown_name_is_one_line_without_folders(given_name: str) -> None:
    """Without separators and control characters, at most 200 characters."""
    shown = shown_name(given_name)
    assert len(shown) <= 200
    assert not set(shown) & set("/\\\x00\n\r\u202e")
    assert shown not in (".", "..")
