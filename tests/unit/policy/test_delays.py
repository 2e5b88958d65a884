"""A message that waits is one header; whatever else has that header is none."""

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


def test_it_comes_out_as_it_went_in_without_what_the_broker_counted() -> None:
    """Where it goes, its headers, its expiration; nothing of them means anything on the way."""
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


def test_without_an_expiration_there_is_none_afterwards() -> None:
    """A message that may wait for any time still may."""
    waiting = delay(Message("", "q"), 0, 0)
    assert (waiting.exchange, waiting.routing_key) == ("", "hopback.delay.due")
    found = read_delayed(Received("due", "", "due", b"", waiting.properties))
    assert found is not None
    assert found.message.properties.expiration is None


@pytest.mark.parametrize("value", ["text", {}, {"exchange": "x", "routing-key": 1}])
def test_what_is_not_ours_is_none(value: FieldValue) -> None:
    """Headers are hostile: nothing is guessed."""
    properties = Properties(headers={"hopback-delay": value})
    assert read_delayed(Received("due", "", "due", b"", properties)) is None


def test_what_was_stored_before_it_is_published_waits_for_what_is_left() -> None:
    """An outbox may hold it for a while; what is no delayed message stays what it is."""
    waiting = delay(_MESSAGE, 60_000, 100_000)
    later = read_delayed(delay_until_due(waiting, 70.0))
    assert later is not None
    assert later.due_ms == 100_000
    assert delay_until_due(waiting, 70.0).routing_key == delay(_MESSAGE, 30_000, 0).routing_key
    assert delay_until_due(waiting, 500.0).routing_key == delay(_MESSAGE, 0, 0).routing_key
    assert delay_until_due(_MESSAGE, 70.0) is _MESSAGE


def test_a_header_at_the_greatest_depth_waits_beside_the_others() -> None:
    """Inside the table of the delay it would be nested too deeply to be encoded."""
    deep: FieldValue = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    waiting = delay(Message("", "q", b"", Properties(headers={"deep": deep, "n": 1})), 0, 0)
    found = read_delayed(Received("due", "", "due", b"", waiting.properties))
    assert found is not None
    assert found.message.properties.headers == {"deep": deep, "n": 1}


def test_a_repeated_header_comes_out_as_it_went_in() -> None:
    """AMQP allows a name to occur twice in a table."""
    twice = Properties(headers={"n": 1}, further_headers=((b"n", 2), (b"\xff", "x")))
    waiting = delay(Message("", "q", b"", twice), 0, 0)
    assert waiting.properties.further_headers == ()
    found = read_delayed(Received("due", "", "due", b"", waiting.properties))
    assert found is not None
    assert found.message.properties.further_headers == ((b"n", 2), (b"\xff", "x"))


def test_repeated_headers_that_are_not_pairs_of_a_name_and_a_value_are_ignored() -> None:
    waiting = delay(_MESSAGE, 0, 0)
    table = waiting.properties.headers["hopback-delay"]
    assert isinstance(table, dict)
    forged = Properties(headers={"hopback-delay": {**table, "further": "text"}})
    found = read_delayed(Received("due", "", "due", b"", forged))
    assert found is not None
    assert found.message.properties.further_headers == ()
