"""A delayed message is stored in one header. Other contents of that header are ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.fields import MAX_DEPTH
from hopback.message import Message, Properties, Received
from hopback.policy.delays import Delayed, delay, delay_until_due, read_delayed

if TYPE_CHECKING:
    from hopback.fields import FieldValue

_MESSAGE = Message(
    "events",
    "a.b",
    b"x",
    Properties(
        headers={"n": 1, "CC": ["other"], "x-death": [], "x-delivery-count": 3},
        expiration="5000",
        message_id="m",
    ),
    mandatory=False,
)


def test_delayed_message_round_trips_without_broker_counts() -> None:
    """Destination, headers and expiration are kept."""
    waiting = delay(_MESSAGE, 13_000, 99)
    assert (waiting.exchange, waiting.routing_key) == ("hopback.delay.level-03", "1.0.1.1")
    assert set(waiting.properties.headers) == {"hopback-delay"}
    assert waiting.properties.expiration is None
    assert waiting.mandatory
    found = read_delayed(Received("due", "", "due", waiting.body, waiting.properties))
    assert isinstance(found, Delayed)
    assert found.due_ms == 99
    assert found.message.properties.headers == {"n": 1, "CC": ["other"]}
    assert found.message.properties.expiration == "5000"
    assert (found.message.exchange, found.message.routing_key) == ("events", "a.b")
    assert not found.message.mandatory


def test_delayed_message_without_expiration_has_none_afterwards() -> None:
    waiting = delay(Message("", "q"), 0, 0)
    assert (waiting.exchange, waiting.routing_key) == ("", "hopback.delay.due")
    found = read_delayed(Received("due", "", "due", b"", waiting.properties))
    assert found is not None
    assert found.message.properties.expiration is None


@pytest.mark.parametrize("value", ["text", {}, {"exchange": "x", "routing-key": 1}])
def test_invalid_delay_header_is_ignored(value: FieldValue) -> None:
    properties = Properties(headers={"hopback-delay": value})
    assert read_delayed(Received("due", "", "due", b"", properties)) is None


def test_delay_is_shortened_by_time_in_outbox() -> None:
    """A message that is not delayed is unchanged."""
    waiting = delay(_MESSAGE, 60_000, 100_000)
    later = read_delayed(delay_until_due(waiting, 70.0))
    assert later is not None
    assert later.due_ms == 100_000
    assert delay_until_due(waiting, 70.0).routing_key == delay(_MESSAGE, 30_000, 0).routing_key
    assert delay_until_due(waiting, 500.0).routing_key == delay(_MESSAGE, 0, 0).routing_key
    assert delay_until_due(_MESSAGE, 70.0) is _MESSAGE


def test_deepest_header_is_stored_outside_delay_table() -> None:
    """Inside it would be nested too deeply."""
    deep: FieldValue = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    waiting = delay(Message("", "q", b"", Properties(headers={"deep": deep, "n": 1})), 0, 0)
    found = read_delayed(Received("due", "", "due", b"", waiting.properties))
    assert found is not None
    assert found.message.properties.headers == {"deep": deep, "n": 1}


def test_repeated_header_round_trips_through_delay() -> None:
    """AMQP allows a name to occur twice in a table."""
    twice = Properties(headers={"n": 1}, further_headers=((b"n", 2), (b"\xff", "x")))
    waiting = delay(Message("", "q", b"", twice), 0, 0)
    assert waiting.properties.further_headers == ()
    found = read_delayed(Received("due", "", "due", b"", waiting.properties))
    assert found is not None
    assert found.message.properties.further_headers == ((b"n", 2), (b"\xff", "x"))


def test_invalid_repeated_headers_are_ignored() -> None:
    waiting = delay(_MESSAGE, 0, 0)
    table = waiting.properties.headers["hopback-delay"]
    assert isinstance(table, dict)
    forged = Properties(headers={"hopback-delay": {**table, "further": "text"}})
    found = read_delayed(Received("due", "", "due", b"", forged))
    assert found is not None
    assert found.message.properties.further_headers == ()
