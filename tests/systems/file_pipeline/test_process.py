"""The state of a file does not depend on the order of its events."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.systems.file_pipeline.messages import (
    FileRejected,
    FileUploaded,
    FileValidated,
    MetadataExtracted,
    ProcessingFailed,
    ThumbnailGenerated,
)
from hopback.systems.file_pipeline.projection import Process

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.systems.file_pipeline.projection import Fact

_UPLOADED = FileUploaded("f", 1, "a.png", "image/png", 5, "00")
_PICTURE = FileValidated("f", 1, "a.png", "image/png", 5, "00")
_TEXT = FileValidated("f", 1, "a.txt", "text/plain", 5, "00")
_REJECTED = FileRejected("f", 1, "a.png", "TYPE_MISMATCH", "No.")
_DRAWN = ThumbnailGenerated("f", 1, 10, 10, 99)
_DESCRIBED = MetadataExtracted("f", 1, {"size": 5})
_FAILED = ProcessingFailed("f", 1, "thumbnail", "broken")


def _after(facts: Iterable[Fact], *, timed_out: bool = False) -> Process:
    process = Process("f", 1, "c", 0.0, timed_out=timed_out)
    for fact in facts:
        process = process.after(fact)
    return process


@pytest.mark.parametrize(
    ("facts", "status", "missing"),
    [
        ([], "uploaded", ["validation"]),
        ([_UPLOADED], "uploaded", ["validation"]),
        ([_UPLOADED, _PICTURE], "processing", ["thumbnail", "metadata"]),
        ([_UPLOADED, _PICTURE, _DRAWN], "processing", ["metadata"]),
        ([_UPLOADED, _PICTURE, _DESCRIBED], "processing", ["thumbnail"]),
        ([_UPLOADED, _PICTURE, _DRAWN, _DESCRIBED], "completed", []),
        ([_UPLOADED, _TEXT, _DESCRIBED], "completed", []),
        ([_UPLOADED, _REJECTED], "rejected", ["validation"]),
        ([_UPLOADED, _PICTURE, _DESCRIBED, _FAILED], "failed", ["thumbnail"]),
        ([_UPLOADED, _PICTURE, _DESCRIBED, _FAILED, _DRAWN], "completed", []),
    ],
)
def test_status_does_not_depend_on_order_of_events(
    facts: list[Fact], status: str, missing: list[str]
) -> None:
    ends = {
        (_after(order).status, tuple(_after(order).waiting_for)) for order in permutations(facts)
    }
    assert ends == {(status, tuple(missing))}


def test_timed_out_file_can_fail_and_be_completed() -> None:
    """`failed` replaces `timed-out`, `completed` replaces both."""
    late = _after([_UPLOADED, _PICTURE, _DESCRIBED], timed_out=True)
    assert late.status == "timed-out"
    assert late.after(_FAILED).status == "failed"
    assert late.after(_FAILED).after(_DRAWN).status == "completed"


@given(st.lists(st.sampled_from([_UPLOADED, _PICTURE, _DRAWN, _DESCRIBED, _FAILED, _REJECTED])))
def test_repeated_events_do_not_change_the_status(facts: list[Fact]) -> None:
    """For any sequence of events, repeated completely."""
    assert _after([*facts, *facts]) == _after(facts)
