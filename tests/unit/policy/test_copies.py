"""The runs that ended: how many are remembered."""

from __future__ import annotations

from hopback.message import Properties, Received
from hopback.policy.copies import EndedRuns, may_be_copy


class _FromTheWire(Received):
    """A delivery whose properties are still bytes."""

    raw_properties = b"...\x0fhopback-lineage..."


def test_lineage_header_is_detected_without_decoding() -> None:
    bare = ("", "", "q", b"", Properties())
    assert may_be_copy(_FromTheWire(*bare))
    assert not may_be_copy(Received(*bare))
    assert may_be_copy(Received(*bare[:4], Properties(headers={"hopback-lineage": "x"})))


def test_oldest_ended_run_is_forgotten_first() -> None:
    """A run that ends once more counts as new."""
    ended = EndedRuns(most=2)
    for token in (b"a", b"b", b"a", b"c"):
        ended.add(token)
    assert [token in ended for token in (b"a", b"b", b"c")] == [True, False, True]
    assert len(ended) == 2
