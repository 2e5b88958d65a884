"""Timelines as values, and as Mermaid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.designs import DESIGNS
from hopback.testing.simulate import (
    Timeline,
    TimelineEvent,
    TimelineStep,
    select_headers,
    sequence_of,
)
from hopback.version import BrokerVersion

if TYPE_CHECKING:
    from hopback.fields import FieldValue

_LIFE = (
    TimelineEvent(0, TimelineStep.PUBLISHED, "q", "through x as k"),
    TimelineEvent(0, TimelineStep.COPY, "audit", ""),
    TimelineEvent(0, TimelineStep.RUN, "q", "attempt 1 of 2 fails"),
    TimelineEvent(0, TimelineStep.WAITS, "q.retry", "5s"),
    TimelineEvent(5_000, TimelineStep.RETURNED, "q", ""),
    TimelineEvent(5_000, TimelineStep.EXTRA, "audit", ""),
    TimelineEvent(5_000, TimelineStep.RUN, "q", "attempt 2 of 2 is parked"),
    TimelineEvent(5_000, TimelineStep.PARKED, "q.dlq", ""),
    TimelineEvent(5_000, TimelineStep.EXTRA, "audit", ""),
)


def _timeline(*entries: TimelineEvent) -> Timeline:
    return Timeline("t", "q", BrokerVersion(4), "x", "k", entries)


def test_timeline_computes_runs_duration_and_extra_copies() -> None:
    timeline = _timeline(*_LIFE)
    assert timeline.runs == 2
    assert timeline.duration_ms == 5_000
    assert timeline.last_event == _LIFE[7]
    assert timeline.extra_copies == {"audit": 2}


def test_select_headers_keeps_counters_and_deaths() -> None:
    """Payload headers and failure records are omitted."""
    plan = DESIGNS["freeflow"].build().plans[0]
    death: dict[str, FieldValue] = {"queue": "q", "reason": "rejected", "count": 2}
    headers: dict[str, FieldValue] = {
        "x-retry-count": 2,
        "x-original-routing-key": "user.created",
        "hopback-attempts": 2,
        "hopback-failure": "{}",
        "tenant": "a",
        "x-death": [death],
    }
    assert select_headers(headers, plan) == {
        "x-retry-count": "2",
        "hopback-attempts": "2",
        "x-death": "rejected q ×2",
    }


def test_timeline_is_drawn_as_sequence_diagram() -> None:
    """Every entry is an arrow. A returned message starts at the queue it waited in."""
    drawn = sequence_of(_timeline(*_LIFE)).splitlines()
    assert drawn[0] == "sequenceDiagram"
    assert "    participant q_q_retry as q.retry" in drawn
    assert "    q_q_retry->>q_q: 5s, returned" in drawn
    assert "    q_q_retry->>q_audit: 5s, extra copy" in drawn
    assert sum(": " in line for line in drawn) == len(_LIFE)


def test_hostile_queue_name_cannot_break_diagram() -> None:
    hostile = "q\n    evil->>q: x; %% <b>"
    drawn = sequence_of(_timeline(TimelineEvent(0, TimelineStep.LOST, hostile, "a;b#c\nd")))
    assert len(drawn.splitlines()) == 6
    assert "evil->>" not in drawn
