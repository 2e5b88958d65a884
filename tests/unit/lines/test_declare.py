"""Reading what RabbitMQ says when two declarations differ."""

from __future__ import annotations

import pytest

from hopback.broker.declare import Difference, read_difference

_START = "PRECONDITION_FAILED - inequivalent arg "


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "'x-message-ttl' for queue 'q' in vhost '/': received '5000' but current is '1000'",
            Difference("queue", "q", "x-message-ttl", "5000", "1000"),
        ),
        (
            "'x-max-length' for queue 'q' in vhost 'v': received the value '5' of type 'long' "
            "but current is none",
            Difference("queue", "q", "x-max-length", "5", "nothing"),
        ),
        (
            "'x-expires' for queue 'q' in vhost '/': received none but current is the value "
            "'60000' of type 'signedint'",
            Difference("queue", "q", "x-expires", "nothing", "60000"),
        ),
        (
            "'type' for exchange 'it's odd' in vhost '/': received 'topic' but current is 'direct'",
            Difference("exchange", "it's odd", "type", "topic", "direct"),
        ),
    ],
)
def test_every_form_of_a_406_is_read(text: str, found: Difference) -> None:
    """Values with and without types, missing on either side, quotes in names."""
    assert read_difference(_START + text) == found


def test_other_texts_are_left_as_they_are() -> None:
    """A 406 about something else is no difference of declarations."""
    assert (
        read_difference("PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'q'") is None
    )


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            Difference("queue", "q", "x-message-ttl", "5000", "1000"),
            "queue 'q', x-message-ttl: declared 5000, the broker has 1000. Declare x-message-ttl = "
            "1000, set the value by a policy, or recreate the queue.",
        ),
        (
            Difference("queue", "q", "x-max-priority", "5", "nothing"),
            "queue 'q', x-max-priority: declared 5, the broker has nothing. Leave x-max-priority "
            "out, or recreate the queue: it cannot be changed in place.",
        ),
    ],
)
def test_a_difference_says_what_to_do(found: Difference, says: str) -> None:
    """Argument, both values, and the ways out that there are for this argument."""
    assert str(found) == says
