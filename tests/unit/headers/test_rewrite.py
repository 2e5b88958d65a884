"""New properties for every hop: what stays, what goes, what is added, and what never fits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from hopback.fields import Timestamp
from hopback.headers import (
    ADDED_BYTES,
    FRAME_BYTES,
    Failure,
    Mark,
    deaths,
    failure_in,
    frame_size,
    park_properties,
    read_history,
    redrive_properties,
    retry_properties,
)
from hopback.message import Properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.fields import FieldValue

_DEATH: dict[str, FieldValue] = {
    "count": 2,
    "reason": "rejected",
    "queue": "q",
    "time": Timestamp(1_700_000_000),
    "exchange": "domain.events",
    "routing-keys": ["k"],
}


def _received() -> Properties:
    return Properties(
        content_type="application/json",
        correlation_id="c-1",
        priority=4,
        timestamp=1_700_000_000,
        delivery_mode=1,
        expiration="60000",
        user_id="alice",
        headers={
            "tenant": "acme",
            "x-death": [_DEATH],
            "x-first-death-queue": "q",
            "x-last-death-queue": "q",
            "x-delivery-count": 3,
            "x-acquired-count": 4,
            "CC": ["other"],
            "BCC": ["hidden"],
            "hopback-future": "from a newer version",
            "order": 17,
        },
    )


def _written(
    write: Callable[[Properties, Mark], Properties | None], mark: Mark, properties: Properties
) -> Properties:
    written = write(properties, mark)
    assert written is not None
    return written


def test_a_retry_replays_nothing_that_could_harm_it() -> None:
    """Deaths are copied and stripped; expiration, routes, login and stale counts go."""
    written = _written(retry_properties, Mark("q", 2), _received())
    assert list(written.headers) == [
        "tenant",
        "hopback-future",
        "order",
        "hopback-queue",
        "hopback-attempts",
        "hopback-origin-user-id",
        "hopback-deaths",
    ]
    assert (written.expiration, written.user_id, written.delivery_mode) == (None, None, 2)
    assert read_history(written.headers, "q").deaths == deaths(_received().headers)
    assert written.headers["hopback-origin-user-id"] == "alice"
    kept = replace(written, headers={}, delivery_mode=1, expiration="60000", user_id="alice")
    assert kept == replace(_received(), headers={})


def test_parking_keeps_the_record_of_deaths() -> None:
    """`x-death` and its companions stay as they were; what is stale or routes goes."""
    written = _written(park_properties, Mark("q", 3), _received())
    assert written.headers["x-death"] == [_DEATH]
    assert "hopback-deaths" not in written.headers
    assert {"x-first-death-queue", "x-last-death-queue"} <= written.headers.keys()
    assert not {"CC", "BCC", "x-delivery-count", "x-acquired-count"} & written.headers.keys()
    assert (written.expiration, written.user_id, written.delivery_mode) == (None, None, 2)


def test_a_redrive_shows_deaths_only_where_asked_and_only_the_brokers() -> None:
    """By default stripped as for a retry; kept where the design says so, unless malformed."""
    plain = _written(redrive_properties, Mark("q", 0), _received())
    assert "x-death" not in plain.headers
    assert "hopback-deaths" in plain.headers
    kept = redrive_properties(_received(), Mark("q", 0), keep_deaths=True)
    assert kept is not None
    assert kept.headers["x-death"] == [_DEATH]
    assert "hopback-deaths" not in kept.headers
    forged = replace(_received(), headers={"x-death": [{**_DEATH, "count": "3"}]})
    safe = redrive_properties(forged, Mark("q", 0), keep_deaths=True)
    assert safe is not None
    assert "x-death" not in safe.headers
    assert "hopback-deaths" in safe.headers


def test_the_mark_says_all_it_knows() -> None:
    """Every field of the mark has its header, counts as integers."""
    mark = Mark(
        queue="q",
        attempts=2,
        snoozes=1,
        origin_exchange="x",
        origin_routing_key="k",
        failure=Failure("E", "m"),
        redrives=1,
        redrive_job="job",
        counters={"x-retries": 2},
        design={"x-retry-reason": "db_error: away"},
        without=frozenset({"order"}),
    )
    written = _written(retry_properties, mark, Properties(headers={"order": 1, "x-retries": 1}))
    failure = written.headers["hopback-failure"]
    assert failure_in(failure) == Failure("E", "m")
    assert dict(written.headers) == {
        "hopback-queue": "q",
        "hopback-attempts": 2,
        "hopback-snoozes": 1,
        "hopback-redrives": 1,
        "x-retries": 2,
        "hopback-origin-routing-key": "k",
        "hopback-origin-exchange": "x",
        "hopback-redrive-job": "job",
        "x-retry-reason": "db_error: away",
        "hopback-failure": failure,
    }


def test_what_the_mark_does_not_say_stays_as_it_was() -> None:
    """Re-drives, job, login, last failure and older deaths travel on."""
    mark = Mark("q", 1, failure=Failure("E", "m"), redrives=2, redrive_job="job")
    first = _written(retry_properties, mark, _received())
    second = _written(retry_properties, Mark("q", 2), first)
    changed = {name for name in first.headers if first.headers[name] != second.headers[name]}
    assert changed == {"hopback-attempts"}


def test_the_failure_of_another_queue_does_not_travel_on() -> None:
    """A copy that fails elsewhere begins its own record."""
    first = _written(retry_properties, Mark("q", 1, failure=Failure("E", "m")), _received())
    second = _written(retry_properties, Mark("audit", 1), first)
    assert "hopback-failure" not in second.headers


def test_no_design_can_write_over_what_is_ours_or_the_brokers() -> None:
    """A stamp by such a name is not written."""
    mark = Mark("q", 1, design={"hopback-attempts": 9, "x-death": "forged", "CC": ["x"]})
    written = _written(park_properties, mark, Properties())
    assert dict(written.headers) == {"hopback-queue": "q", "hopback-attempts": 1}


def test_what_we_add_stays_within_its_budget() -> None:
    """However much the design wants to say, and the record of the failure shrinks first."""
    chatty: dict[str, FieldValue] = {f"x-note-{n}": "n" * 1000 for n in range(40)}
    mark = Mark("q", 1, failure=Failure("E", "m", stack="s" * 4000), design=chatty)
    written = _written(retry_properties, mark, Properties())
    assert ADDED_BYTES - 2000 < frame_size(written) <= ADDED_BYTES + 20
    record = failure_in(written.headers.get("hopback-failure"))
    assert record is None or len(record.stack) < 4000


def _filled(size: int) -> Properties:
    """Persistent properties whose frame carries exactly `size` bytes."""
    empty = Properties(delivery_mode=2, headers={"u": ""})
    return replace(empty, headers={"u": "u" * (size - frame_size(empty))})


def test_near_the_limit_everything_but_the_count_is_left_out() -> None:
    """The frame is full up to the last hundred bytes: the count is there, the rest is not."""
    mark = Mark("q", 1, origin_routing_key="k", failure=Failure("E", "m"), design={"x-a": "b"})
    written = _written(retry_properties, mark, _filled(FRAME_BYTES - 100))
    assert set(written.headers) == {"u", "hopback-queue", "hopback-attempts"}
    assert frame_size(written) <= FRAME_BYTES


def test_room_is_left_for_the_death_that_the_broker_will_add() -> None:
    """Optional headers stop two kilobytes before the end of the frame."""
    mark = Mark("q", 1, failure=Failure("E", "m" * 1000, stack="s" * 4000))
    written = _written(retry_properties, mark, _filled(FRAME_BYTES - 3000))
    assert "hopback-failure" in written.headers
    assert frame_size(written) <= FRAME_BYTES - 2048


def test_a_retry_without_room_for_its_count_does_not_exist() -> None:
    """One byte decides."""
    mark = Mark("q", 1)
    needed = frame_size(_written(retry_properties, mark, _filled(100))) - 100
    assert retry_properties(_filled(FRAME_BYTES - needed), mark) is not None
    assert retry_properties(_filled(FRAME_BYTES - needed + 1), mark) is None
    assert redrive_properties(_filled(FRAME_BYTES - needed + 1), mark) is None


def test_parking_gives_up_our_headers_then_the_deaths_then_the_largest_headers() -> None:
    """What the producer wrote is left out only where no frame holds it, and its size is told."""
    full = _filled(FRAME_BYTES)
    bare = _written(park_properties, Mark("q", 1), full)
    assert dict(bare.headers) == dict(full.headers)
    died = replace(full, headers={**full.headers, "x-death": [_DEATH]})
    stripped = _written(park_properties, Mark("q", 1), died)
    assert dict(stripped.headers) == dict(full.headers)
    beyond = _filled(FRAME_BYTES + 1)
    beyond = replace(beyond, headers={**beyond.headers, "small": 1})
    shortened = _written(park_properties, Mark("q", 1), beyond)
    assert (shortened.headers["small"], shortened.headers["hopback-queue"]) == (1, "q")
    left_out = shortened.headers["hopback-unread-bytes"]
    assert isinstance(left_out, int)
    assert frame_size(shortened) + left_out > FRAME_BYTES > left_out


def test_a_size_is_what_the_wire_carries() -> None:
    """Each property at its cost, and every header that is written."""
    assert frame_size(Properties()) == 14
    assert frame_size(Properties(priority=1, delivery_mode=2, timestamp=3)) == 14 + 10
    texts = Properties(
        content_type="a", content_encoding="b", correlation_id="c", reply_to="d", expiration="e",
        message_id="f", type="g", user_id="h", app_id="i", cluster_id="ü",
    )  # fmt: skip
    assert frame_size(texts) == 14 + 9 * 2 + 3
    assert frame_size(Properties(headers={"k": "v"})) == 14 + 4 + 2 + 5 + 1
    assert frame_size(Properties(further_headers=((b"\xff", "v"),))) == 14 + 4 + 2 + 5 + 1
    assert frame_size(Properties(opaque_headers=b"xyz")) == 14


@pytest.mark.parametrize("write", [retry_properties, park_properties, redrive_properties])
def test_headers_that_could_not_be_read_travel_on_as_bytes(
    write: Callable[[Properties, Mark], Properties | None],
) -> None:
    """A message with broken headers can still be moved, and at the next hop they are still there."""
    written = _written(write, Mark("q", 1), Properties(opaque_headers=b"\x01x"))
    again = _written(write, Mark("q", 2), written)
    for each in (written, again):
        assert each.opaque_headers == b""
        assert each.headers["hopback-unread-headers"] == b"\x01x"


def test_unread_headers_that_were_cut_stay_known_as_cut() -> None:
    """The length that they had is told at every further hop."""
    full = Properties(headers={"b": b"b" * 130_000}, opaque_headers=b"z" * 4000)
    parked = _written(park_properties, Mark("q", 1), full)
    assert parked.headers["hopback-unread-bytes"] == 4000
    assert len(cast("bytes", parked.headers["hopback-unread-headers"])) < 1000
    light = replace(parked, headers={k: v for k, v in parked.headers.items() if k != "b"})
    again = _written(redrive_properties, Mark("q", 0), light)
    assert again.headers["hopback-unread-bytes"] == 4000


def test_a_job_name_is_cut_to_what_can_be_read_back() -> None:
    """A header of ours is never longer than we read."""
    written = _written(redrive_properties, Mark("q", 0, redrive_job="j" * 999), Properties())
    job = written.headers["hopback-redrive-job"]
    assert read_history(written.headers, "q").redrive_job == job
    assert json.dumps(job)
