"""Reading `x-death`, whatever its shape, and remembering it within bounds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hopback.fields import Int32, LongStr, Timestamp
from hopback.headers import (
    Death,
    broker_failures,
    deaths,
    entry_route,
    last_death_queue,
    read_deaths,
    well_formed_deaths,
)
from hopback.headers.history import deaths_json

if TYPE_CHECKING:
    from hopback.fields import FieldValue


def _entry(
    queue: str = "q", reason: str = "rejected", count: FieldValue = 1
) -> dict[str, FieldValue]:
    return {
        "count": count,
        "reason": reason,
        "queue": queue,
        "time": Timestamp(1_700_000_000),
        "exchange": "domain.events",
        "routing-keys": ["files.uploaded.v1", "cc.key"],
    }


def test_death_entry_is_parsed() -> None:
    assert deaths({"x-death": [_entry(count=3)]}) == (
        Death("q", "rejected", 3, "domain.events", ("files.uploaded.v1", "cc.key"), 1_700_000_000),
    )


@pytest.mark.parametrize(
    "value",
    [
        "rejected",
        {"queue": "q"},
        None,
        7,
        [None],
        ["q"],
        [{"queue": "q"}],
        [{"reason": "rejected"}],
    ],
)
def test_entry_without_queue_and_reason_is_ignored(value: FieldValue) -> None:
    assert deaths({"x-death": value}) == ()


def test_partly_invalid_entry_is_read_with_defaults() -> None:
    """An invalid count means one death."""
    broken: dict[str, FieldValue] = {
        "queue": "q",
        "reason": "rejected",
        "count": "3",
        "time": "yesterday",
        "exchange": 5,
        "routing-keys": ["key", 7],
    }
    assert deaths({"x-death": [broken, {**broken, "routing-keys": "key"}]}) == (
        Death("q", "rejected", 1, "", ("key",)),
        Death("q", "rejected", 1),
    )


def test_only_failures_of_queue_are_counted() -> None:
    """Rejections and delivery limits count. Expiry and other queues do not."""
    headers: dict[str, FieldValue] = {
        "x-death": [
            _entry("q.retry", "expired", 2),
            _entry("q", "expired", 5),
            _entry("q", "rejected", 2),
            _entry("other", "rejected", 9),
            _entry("q", "delivery_limit", 1),
        ]
    }
    assert broker_failures(headers, "q") == 3


def test_last_death_is_first_entry() -> None:
    """Without entries the newer header is used."""
    assert last_death_queue({"x-death": [_entry("a"), _entry("b")]}) == "a"
    assert last_death_queue({"x-death": ["broken", _entry("b")]}) is None
    assert last_death_queue({"x-last-death-queue": "c"}) == "c"
    assert last_death_queue({"x-last-death-queue": 5}) is None


def test_origin_of_queue_is_that_of_its_first_death() -> None:
    headers: dict[str, FieldValue] = {"x-death": [_entry("q.retry", "expired"), _entry("q")]}
    assert entry_route(headers, "q") == ("domain.events", "files.uploaded.v1")
    assert entry_route(headers, "elsewhere") is None
    assert entry_route({"x-death": [{**_entry(), "routing-keys": []}]}, "q") is None


def test_x_death_of_broker_is_well_formed() -> None:
    assert well_formed_deaths({})
    assert well_formed_deaths({"x-death": []})
    extra: dict[str, FieldValue] = {**_entry(), "original-expiration": "300"}
    assert well_formed_deaths({"x-death": [extra, _entry(count=Int32(2))]})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", "3"),
        ("count", True),
        ("count", 0),
        ("count", 1.0),
        ("count", Timestamp(3)),
        ("queue", LongStr(b"\xff")),
        ("reason", None),
        ("exchange", 1),
        ("time", 1_700_000_000),
        ("time", "2023-11-14"),
        ("routing-keys", "key"),
        ("routing-keys", [1]),
    ],
)
def test_x_death_with_one_wrong_field_is_malformed(field: str, value: FieldValue) -> None:
    """A round trip through JSON causes it."""
    assert not well_formed_deaths({"x-death": [_entry(), {**_entry(), field: value}]})


@pytest.mark.parametrize("value", ["text", {"a": 1}, None, 3, ["text"], [[]]])
def test_x_death_that_is_not_a_list_of_tables_is_malformed(value: FieldValue) -> None:
    assert not well_formed_deaths({"x-death": value})


def test_deaths_round_trip_as_json() -> None:
    """The ten most recent ones are kept."""
    known = [Death(f"q{n}", "rejected", n + 1, "x", ("k",), 5) for n in range(12)]
    pieces = deaths_json(known, 10_000)
    assert pieces is not None
    text = "".join(pieces)
    assert json.loads(text)[0] == {
        "queue": "q0",
        "reason": "rejected",
        "count": 1,
        "exchange": "x",
        "routing-keys": ["k"],
        "time": 5,
    }
    assert read_deaths({"hopback-deaths": pieces}) == tuple(known[:10])
    assert read_deaths({"hopback-deaths": text}) == tuple(known[:10])  # as 0.1.0 wrote it


@pytest.mark.parametrize("name", ["orders", "Aufträge", "\N{PACKAGE}" * 40])
def test_stored_pieces_have_at_most_64_bytes(name: str) -> None:
    known = (Death(name, "rejected", 2, name, (name, "k"), 5), Death("q", "expired"))
    pieces = deaths_json(known, 10_000)
    assert pieces is not None
    assert max(len(piece.encode()) for piece in pieces) <= 64
    assert read_deaths({"hopback-deaths": pieces}) == known


def test_oldest_deaths_are_omitted_first() -> None:
    known = [Death(f"q{n}", "rejected") for n in range(3)]
    whole = deaths_json(known, 10_000)
    assert whole is not None
    size = sum(5 + len(piece) for piece in whole)  # with its type and its length
    assert deaths_json(known, size) == whole
    shorter = deaths_json(known, size - 1)
    assert shorter is not None
    assert [entry["queue"] for entry in json.loads("".join(shorter))] == ["q0", "q1"]
    assert deaths_json(known, 10) is None
    assert deaths_json([], 10_000) is None


@pytest.mark.parametrize(
    "value",
    [
        *(5, "not json", "[" * 100_000, "[" * 20_000, '{"queue": "q"}', "5", '[{"queue": "q"}]'),
        *([], [5], ["["], ["[]", 5], [["[]"]], ["[" * 1000] * 100, ["["] * 40_000),
    ],
)
def test_invalid_stored_deaths_are_ignored(value: FieldValue) -> None:
    assert read_deaths({"hopback-deaths": value}) == ()
