"""Headers of any type can be read, written headers are bounded, and foreign headers stay unchanged."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.fields import table_size
from hopback.headers import (
    ADDED_BYTES,
    FRAME_BYTES,
    Failure,
    Mark,
    can_park,
    can_retry,
    deaths,
    failure_from_reason,
    failure_in,
    failure_json,
    frame_size,
    identity,
    last_death_queue,
    park_properties,
    read_deaths,
    read_history,
    redrive_properties,
    retry_properties,
    rewrite,
    timestamp,
    well_formed_deaths,
)
from hopback.headers.names import OURS
from hopback.message import Properties, Received
from hopback.policy import Occasion, Retry, decide, effects
from hopback.policy.decision import Publish
from tests.properties.hostile import (
    VERSIONS,
    deliveries,
    hostile_headers,
    many_examples,
    plans,
    user_headers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.fields import FieldValue, Headers
    from hopback.topology.plan import Plan
    from hopback.version import BrokerVersion

_texts = st.text(max_size=300)
_failures = st.builds(
    Failure,
    _texts,
    _texts | st.text(min_size=2000, max_size=2500),
    st.just("abc"),
    _texts,
    st.integers(0, 20_000).map(lambda size: "s" * size),
    _texts,
    st.floats(0, 2e9),
    st.floats(0, 2e9),
    st.integers(0, 100),
)
_marks = st.builds(
    Mark,
    queue=st.sampled_from(("q.audit", "raffle_queue")),
    attempts=st.integers(0, 100),
    snoozes=st.integers(0, 3),
    origin_exchange=st.none() | st.just("domain.events"),
    origin_routing_key=st.none() | st.text(max_size=50),
    failure=st.none() | _failures,
    redrives=st.none() | st.integers(0, 3),
    redrive_job=st.none() | st.text(max_size=300),
    counters=st.sampled_from(({}, {"x-retries": 2})),
    design=st.sampled_from(({}, {"x-parked-reason": "r" * 1000, "hopback-queue": "forged"})),
)
_WRITERS: tuple[Callable[[Properties, Mark], Properties | None], ...] = (
    retry_properties,
    park_properties,
    redrive_properties,
    lambda properties, mark: redrive_properties(properties, mark, keep_deaths=True),
)
_writers = st.sampled_from(_WRITERS)


def _with_types(value: FieldValue) -> object:
    """Return a value with its types at all levels. NaN equals itself."""
    if isinstance(value, dict):
        return {key: _with_types(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_types(inner) for inner in value]
    return type(value), repr(value)


def _assert_same(one: Properties, other: Properties) -> None:
    """Compare values and types by name. The order of Hopback's headers is undefined."""
    assert {name: _with_types(value) for name, value in one.headers.items()} == {
        name: _with_types(value) for name, value in other.headers.items()
    }
    assert [name for name in one.headers if name not in OURS] == [
        name for name in other.headers if name not in OURS
    ]


@given(hostile_headers())
@many_examples
def test_reading_headers_never_raises(headers: Headers) -> None:
    """The counts are never negative."""
    found = deaths(headers)
    assert all(death.count >= 1 for death in found)
    assert len(read_deaths(headers)) <= 10
    last = last_death_queue(headers)
    assert last is None or isinstance(last, str)
    history = read_history(headers, "q.audit")
    assert min(history.attempts, history.snoozes, history.redrives) >= 0
    if well_formed_deaths(headers):
        value = headers.get("x-death", ())
        assert isinstance(value, list | tuple)
        assert len(found) == len(value)


@given(hostile_headers(), _marks, _writers)
@many_examples
def test_producer_headers_survive_in_value_type_and_order(
    headers: Headers, mark: Mark, write: Callable[[Properties, Mark], Properties | None]
) -> None:
    """After every kind of hop."""
    written = write(Properties(headers=headers, opaque_headers=b"\x01"), mark)
    assert written is not None
    before = [
        (name, _with_types(value)) for name, value in headers.items() if name.startswith("u-")
    ]
    after = [
        (name, _with_types(value))
        for name, value in written.headers.items()
        if name.startswith("u-")
    ]
    assert after == before
    assert written.headers["hopback-unread-headers"] == b"\x01"


@given(hostile_headers(), _marks, _writers)
@many_examples
def test_quick_and_weighed_writing_of_headers_agree(
    headers: Headers, mark: Mark, write: Callable[[Properties, Mark], Properties | None]
) -> None:
    """The quick path for messages with few headers writes the same headers."""
    quick = write(Properties(headers=headers), mark)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rewrite, "_ROOMY", -1)
        weighed = write(Properties(headers=headers), mark)
    assert quick is not None
    assert weighed is not None
    _assert_same(quick, weighed)


@given(hostile_headers(), _marks, _writers)
@many_examples
def test_rewriting_headers_is_idempotent(
    headers: Headers, mark: Mark, write: Callable[[Properties, Mark], Properties | None]
) -> None:
    once = write(Properties(headers=headers), mark)
    assert once is not None
    twice = write(once, mark)
    assert twice is not None
    _assert_same(twice, once)


@given(
    user_headers,
    st.integers(0, 131_000),
    hostile_headers(),
    _marks,
    st.sampled_from((retry_properties, park_properties, redrive_properties)),
)
@many_examples
def test_added_headers_are_bounded_and_the_message_fits_a_frame(
    users: dict[str, FieldValue],
    ballast: int,
    hostile: Headers,
    mark: Mark,
    write: Callable[[Properties, Mark], Properties | None],
) -> None:
    headers = {**hostile, **users, "u-ballast": "b" * ballast}
    written = write(Properties(headers=headers), mark)
    if written is not None:
        assert frame_size(written) <= FRAME_BYTES
        added = {k: v for k, v in written.headers.items() if k not in headers}
        rewritten = {
            k: v for k, v in written.headers.items() if k in headers and v is not headers[k]
        }
        assert table_size(added) + table_size(rewritten) - 8 <= ADDED_BYTES
        if "u-ballast" not in written.headers:  # the producer's headers alone fill the frame
            assert "hopback-unread-bytes" in written.headers
            assert write is park_properties
            assert ballast > 120_000
        else:
            assert written.headers["u-ballast"] == headers["u-ballast"]
    else:
        assert write is not park_properties or ballast > 120_000
        assert ballast > 100_000


@given(hostile_headers(), _marks, st.integers(130_000, 131_400), st.none() | st.just("alice"))
@many_examples
def test_can_retry_and_can_park_predict_whether_producer_headers_fit(
    headers: Headers, mark: Mark, ballast: int, user: str | None
) -> None:
    whole = {**headers, "ballast": "b" * max(0, ballast - table_size(headers))}
    properties = Properties(headers=whole, user_id=user)
    assert can_retry(properties, mark) is (retry_properties(properties, mark) is not None)
    parked = park_properties(properties, mark)
    assert can_park(properties, mark) is ("ballast" in parked.headers)
    assert frame_size(parked) <= FRAME_BYTES


@given(_failures, st.integers(0, 9000))
@many_examples
def test_failure_record_shrinks_to_the_available_room(failure: Failure, room: int) -> None:
    """Type and fingerprint are kept longest."""
    text = failure_json(failure, room)
    if text is None:
        assert room < 1500
        return
    assert len(text.encode()) <= min(room, 8192)
    read = failure_in(text)
    assert read is not None
    assert read.fingerprint == failure.fingerprint
    assert failure_json(read, room) == text


@given(st.text())
@many_examples
def test_reasons_that_differ_in_numbers_have_the_same_fingerprint(reason: str) -> None:
    one, other = (failure_from_reason(f"order {n} of {reason}") for n in (17, 99881))
    assert one.fingerprint == other.fingerprint


@given(st.data(), plans, st.sampled_from(VERSIONS))
@many_examples
def test_identity_of_a_message_survives_every_hop(
    data: st.DataObject, plan: Plan, version: BrokerVersion
) -> None:
    """A message without ID is recognised after it was published for retry or parked."""
    delivery = data.draw(deliveries(plan))
    bare = Received(
        plan.queue, delivery.exchange, delivery.routing_key, delivery.body,
        Properties(headers=delivery.properties.headers, content_type="text/plain"),
    )  # fmt: skip
    decision = decide(bare, Retry("no"), plan, version=version)
    for step in effects(decision, bare, plan, Occasion(1_700_000_000.0)):
        if isinstance(step, Publish):
            moved = Received(plan.queue, "", "", step.message.body, step.message.properties)
            assert identity(moved) == identity(bare)


@given(st.floats() | st.integers(-(10**12), 10**12) | st.floats(0, 4e9))
def test_timestamp_formats_like_datetime(seconds: float) -> None:
    """With the same rounding. An impossible time is 1970-01-01."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    written = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert timestamp(seconds) == written
