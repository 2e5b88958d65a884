"""New properties for every hop: kept, removed, added and oversized headers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from hopback.fields import LongStr, Timestamp
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


def _properties() -> Properties:
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


def test_retry_strips_deaths_expiration_and_routes() -> None:
    written = _written(retry_properties, Mark("q", 2), _properties())
    assert list(written.headers) == [
        "tenant",
        "hopback-future",
        "order",
        "hopback-deaths",
        "hopback-queue",
        "hopback-attempts",
        "hopback-origin-user-id",
    ]
    assert (written.expiration, written.user_id, written.delivery_mode) == (None, None, 2)
    assert read_history(written.headers, "q").deaths == deaths(_properties().headers)
    assert written.headers["hopback-origin-user-id"] == "alice"
    kept = replace(written, headers={}, delivery_mode=1, expiration="60000", user_id="alice")
    assert kept == replace(_properties(), headers={})


def test_parking_keeps_x_death() -> None:
    written = _written(park_properties, Mark("q", 3), _properties())
    assert written.headers["x-death"] == [_DEATH]
    assert "hopback-deaths" not in written.headers
    assert {"x-first-death-queue", "x-last-death-queue"} <= written.headers.keys()
    assert not {"CC", "BCC", "x-delivery-count", "x-acquired-count"} & written.headers.keys()
    assert (written.expiration, written.user_id, written.delivery_mode) == (None, None, 2)


def test_redrive_keeps_x_death_only_on_request() -> None:
    """A malformed one is never kept."""
    plain = _written(redrive_properties, Mark("q", 0), _properties())
    assert "x-death" not in plain.headers
    assert "hopback-deaths" in plain.headers
    kept = redrive_properties(_properties(), Mark("q", 0), keep_deaths=True)
    assert kept is not None
    assert kept.headers["x-death"] == [_DEATH]
    assert "hopback-deaths" not in kept.headers
    forged = replace(_properties(), headers={"x-death": [{**_DEATH, "count": "3"}]})
    safe = redrive_properties(forged, Mark("q", 0), keep_deaths=True)
    assert safe is not None
    assert "x-death" not in safe.headers
    assert "hopback-deaths" in safe.headers


def test_mark_writes_all_its_fields() -> None:
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


def test_headers_outside_mark_are_kept() -> None:
    mark = Mark("q", 1, failure=Failure("E", "m"), redrives=2, redrive_job="job")
    first = _written(retry_properties, mark, _properties())
    second = _written(retry_properties, Mark("q", 2), first)
    changed = {name for name in first.headers if first.headers[name] != second.headers[name]}
    assert changed == {"hopback-attempts"}


def test_failure_of_another_queue_is_removed() -> None:
    first = _written(retry_properties, Mark("q", 1, failure=Failure("E", "m")), _properties())
    second = _written(retry_properties, Mark("audit", 1), first)
    assert "hopback-failure" not in second.headers


def test_stamps_cannot_overwrite_reserved_headers() -> None:
    mark = Mark("q", 1, design={"hopback-attempts": 9, "x-death": "forged", "CC": ["x"]})
    written = _written(park_properties, mark, Properties())
    assert dict(written.headers) == {"hopback-queue": "q", "hopback-attempts": 1}


def test_added_headers_stay_within_budget() -> None:
    chatty: dict[str, FieldValue] = {f"x-note-{n}": "n" * 1000 for n in range(40)}
    mark = Mark("q", 1, failure=Failure("E", "m", stack="s" * 4000), design=chatty)
    written = _written(retry_properties, mark, Properties())
    assert ADDED_BYTES - 2000 < frame_size(written) <= ADDED_BYTES + 20
    record = failure_in(written.headers.get("hopback-failure"))
    assert record is None or len(record.stack) < 4000


def _properties_of_size(size: int) -> Properties:
    """Persistent properties whose frame carries exactly `size` bytes."""
    empty = Properties(delivery_mode=2, headers={"u": ""})
    return replace(empty, headers={"u": "u" * (size - frame_size(empty))})


def test_nearly_full_frame_keeps_only_attempt_count() -> None:
    mark = Mark("q", 1, origin_routing_key="k", failure=Failure("E", "m"), design={"x-a": "b"})
    written = _written(retry_properties, mark, _properties_of_size(FRAME_BYTES - 100))
    assert set(written.headers) == {"u", "hopback-queue", "hopback-attempts"}
    assert frame_size(written) <= FRAME_BYTES


def test_optional_headers_leave_room_for_next_death() -> None:
    mark = Mark("q", 1, failure=Failure("E", "m" * 1000, stack="s" * 4000))
    written = _written(retry_properties, mark, _properties_of_size(FRAME_BYTES - 3000))
    assert "hopback-failure" in written.headers
    assert frame_size(written) <= FRAME_BYTES - 2048


def test_retry_without_room_for_count_is_refused() -> None:
    mark = Mark("q", 1)
    needed = frame_size(_written(retry_properties, mark, _properties_of_size(100))) - 100
    assert retry_properties(_properties_of_size(FRAME_BYTES - needed), mark) is not None
    assert retry_properties(_properties_of_size(FRAME_BYTES - needed + 1), mark) is None
    assert redrive_properties(_properties_of_size(FRAME_BYTES - needed + 1), mark) is None


def test_parking_drops_own_headers_then_deaths_then_largest() -> None:
    """The size of dropped producer headers is recorded."""
    full = _properties_of_size(FRAME_BYTES)
    bare = _written(park_properties, Mark("q", 1), full)
    assert dict(bare.headers) == dict(full.headers)
    died = replace(full, headers={**full.headers, "x-death": [_DEATH]})
    stripped = _written(park_properties, Mark("q", 1), died)
    assert dict(stripped.headers) == dict(full.headers)
    beyond = _properties_of_size(FRAME_BYTES + 1)
    beyond = replace(beyond, headers={**beyond.headers, "small": 1})
    shortened = _written(park_properties, Mark("q", 1), beyond)
    assert (shortened.headers["small"], shortened.headers["hopback-queue"]) == (1, "q")
    left_out = shortened.headers["hopback-unread-bytes"]
    assert isinstance(left_out, int)
    assert frame_size(shortened) + left_out > FRAME_BYTES > left_out


def test_properties_size_equals_encoded_size() -> None:
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
def test_unreadable_headers_are_passed_on_as_bytes(
    write: Callable[[Properties, Mark], Properties | None],
) -> None:
    written = _written(write, Mark("q", 1), Properties(opaque_headers=b"\x01x"))
    again = _written(write, Mark("q", 2), written)
    for each in (written, again):
        assert each.opaque_headers == b""
        assert each.headers["hopback-unread-headers"] == b"\x01x"


def test_truncated_unreadable_headers_keep_original_length() -> None:
    full = Properties(headers={"b": b"b" * 130_000}, opaque_headers=b"z" * 4000)
    parked = _written(park_properties, Mark("q", 1), full)
    assert parked.headers["hopback-unread-bytes"] == 4000
    assert len(cast("bytes", parked.headers["hopback-unread-headers"])) < 1000
    light = replace(parked, headers={k: v for k, v in parked.headers.items() if k != "b"})
    again = _written(redrive_properties, Mark("q", 0), light)
    assert again.headers["hopback-unread-bytes"] == 4000


def test_job_name_is_truncated_to_readable_length() -> None:
    written = _written(redrive_properties, Mark("q", 0, redrive_job="j" * 999), Properties())
    job = written.headers["hopback-redrive-job"]
    assert read_history(written.headers, "q").redrive_job == job
    assert json.dumps(job)


def test_known_job_keeps_its_bytes() -> None:
    """It may have been written by any producer."""
    forged = Properties(headers={"hopback-redrive-job": LongStr(b"\xff" * 255)})
    written = _written(retry_properties, Mark("q", 1), forged)
    assert written.headers["hopback-redrive-job"] == LongStr(b"\xff" * 255)
