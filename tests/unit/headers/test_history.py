"""Hopback's headers read for one queue, identity, and untrusted texts and counts."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from hopback.fields import Int8, Timestamp
from hopback.headers import (
    Death,
    Failure,
    History,
    clip,
    counter_in,
    failure_json,
    identity,
    queue_of_count,
    read_history,
    text_in,
    timestamp,
)
from hopback.headers.history import deaths_json
from hopback.message import Properties, Received
from hopback.text import count_in, seconds_in

if TYPE_CHECKING:
    from hopback.fields import FieldValue, Headers


def _headers() -> dict[str, FieldValue]:
    return {
        "hopback-queue": "q",
        "hopback-attempts": 2,
        "hopback-snoozes": 1,
        "hopback-failure": failure_json(Failure("E", "m", first=1.0)),
        "hopback-lineage": "a1b2",
        "hopback-redrives": 4,
        "hopback-redrive-job": "job-7",
        "hopback-origin-exchange": "x",
        "hopback-origin-routing-key": "k",
        "hopback-origin-user-id": "alice",
        "hopback-deaths": deaths_json([Death("old", "expired")], 999),
        "x-death": [{"queue": "q.retry", "reason": "expired"}],
    }


_ASKED = {"failure_text", "headers", "marked_queue", "queue"}


def _told(history: History) -> dict[str, object]:
    fields = [name for name in dir(History) if not name.startswith("_") and name not in _ASKED]
    return {name: getattr(history, name) for name in fields}


def _is_empty(history: History) -> bool:
    return not any(_told(history).values())


def test_history_contains_counts_failure_origin_and_deaths() -> None:
    assert _told(read_history(_headers(), "q")) == {
        "attempts": 2,
        "snoozes": 1,
        "failure": Failure("E", "m", first=1.0),
        "copy_id": "a1b2",
        "redrives": 4,
        "redrive_job": "job-7",
        "origin_exchange": "x",
        "origin_routing_key": "k",
        "origin_user": "alice",
        "deaths": (Death("q.retry", "expired"), Death("old", "expired")),
        "broker_deaths": (Death("q.retry", "expired"),),
        "broker_failures": 0,
        "entry_route": None,
    }


def test_counts_of_another_queue_are_ignored() -> None:
    """Origin and re-drives are kept."""
    found = read_history(_headers(), "audit")
    assert (found.attempts, found.snoozes, found.failure) == (0, 0, None)
    assert found.copy_id is None
    assert (found.redrives, found.origin_routing_key) == (4, "k")


def test_message_without_headers_has_empty_history() -> None:
    assert _is_empty(read_history({"tenant": "acme"}, "q"))
    assert queue_of_count({}) is None
    assert queue_of_count({"hopback-queue": 3}) is None


def test_headers_of_wrong_type_are_ignored() -> None:
    wrong: Headers = dict.fromkeys(_headers(), b"\xff") | {"hopback-queue": "q"}
    assert _is_empty(read_history(wrong, "q"))


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (3, 3),
        (Int8(5), 5),
        (-1, 0),
        (2**63 - 1, 2**31 - 1),
        (True, 0),
        ("3", 0),
        (2.0, 0),
        (Decimal(3), 0),
        (None, 0),
    ],
)
def test_invalid_counts_are_zero(value: FieldValue, count: int) -> None:
    assert count_in(value) == count
    assert counter_in({"x-retries": value}, "x-retries") == count
    assert counter_in({"x-retries": value}, None) == 0


def test_long_texts_and_invalid_times_are_ignored() -> None:
    assert text_in("ü" * 127) == "ü" * 127
    assert text_in("ü" * 128) is None
    assert text_in(b"bytes") is None
    assert timestamp(1.25) == "1970-01-01T00:00:01.250Z"
    assert timestamp(float("nan")) == timestamp(1e300) == "1970-01-01T00:00:00.000Z"
    assert seconds_in("1970-01-01T00:00:01.250Z") == 1.25
    assert seconds_in("1960-01-01T00:00:00Z") == 0.0
    assert seconds_in("soon") == seconds_in(5) == 0.0


def test_truncation_never_exceeds_limit() -> None:
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdef", 5) == "ab…"
    assert clip("abcdef", 3) == ""


def _message(**headers: FieldValue) -> Received:
    return Received("q", "x", "k", b"body", Properties(type="Order", headers=headers))


def test_message_id_is_the_identity() -> None:
    message = replace(_message(), properties=Properties(message_id="m-1"))
    assert identity(message) == "m-1"


def test_identity_without_id_ignores_headers_changed_by_hops() -> None:
    here = _message(tenant="acme")
    there = Received(
        "q.dlq", "", "parking", b"body",
        Properties(
            type="Order", delivery_mode=2,
            headers={
                "x-death": [], "hopback-attempts": 3, "tenant": "acme", "x-retries": 2,
                "x-parked-at": "now", "CC": ["a"], "mine": 1,
            },
        ),
    )  # fmt: skip
    assert identity(here) == identity(there, ignoring={"mine"})
    assert identity(here) != identity(there)
    assert identity(here).startswith("sha256-")


@pytest.mark.parametrize(
    "other",
    [
        _message(tenant="other"),
        _message(tenant=b"acme"),
        _message(tenant="acme", n=1),
        replace(_message(tenant="acme"), body=b"else"),
        replace(_message(), properties=Properties(type="Refund", headers={"tenant": "acme"})),
        replace(
            _message(),
            properties=Properties(type="Order", headers={"tenant": "acme"}, opaque_headers=b"x"),
        ),
    ],
)
def test_different_messages_have_different_identities(other: Received) -> None:
    assert identity(other) != identity(_message(tenant="acme"))


def test_identity_ignores_order_of_headers() -> None:
    one = _message(a={"x": 1, "y": [Timestamp(1)]}, b=2)
    two = _message(b=2, a={"y": [Timestamp(1)], "x": 1})
    three = _message(b=2, a={"y": [1], "x": 1})
    assert identity(one) == identity(two) != identity(three)


def test_valid_record_is_passed_on_unchanged() -> None:
    text = '{"type":"E","message":"m"}'
    large = f'{{"type":"{"E" * 9000}"}}'
    told = {
        record: read_history({"hopback-queue": "q", "hopback-failure": record}, "q").failure_text()
        for record in (text, large, "[]", "{", "1")
    }
    assert told == {text: text, large: None, "[]": None, "{": None, "1": None}
    assert read_history({"hopback-queue": "q", "hopback-failure": text}, "r").failure_text() is None
