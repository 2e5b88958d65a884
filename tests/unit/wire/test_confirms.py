"""Each publish gets its own fate, whatever the order and grouping of the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.message import Properties
from hopback.wire.confirms import Confirms, InFlight
from hopback.wire.events import ReturnedMessage, read_content
from hopback.wire.properties import encode_properties

if TYPE_CHECKING:
    from hopback.fields import Headers

_PLAIN = encode_properties(Properties())


def _send(
    confirms: Confirms[str],
    name: str,
    *,
    key: str = "q",
    body: bytes = b"",
    properties: bytes = _PLAIN,
    mandatory: bool = True,
    deadline: float = 10.0,
) -> None:
    confirms.add(InFlight(name, "", key, properties, body, mandatory, deadline))


def _return(key: str = "q", body: bytes = b"", properties: bytes = _PLAIN) -> ReturnedMessage:
    method = b"\x01\x38\x08NO_ROUTE\x00" + bytes((len(key),)) + key.encode()
    found = read_content((60 << 16) | 50, 1, method, properties, body)
    assert isinstance(found, ReturnedMessage)
    return found


def _with(message_id: str, headers: Headers | None = None) -> bytes:
    return encode_properties(Properties(message_id=message_id, headers=headers or {}))


def _names(publishes: list[InFlight[str]]) -> list[str]:
    return [publish.ticket for publish in publishes]


def _three() -> Confirms[str]:
    confirms: Confirms[str] = Confirms()
    for name in ("one", "two", "three"):
        _send(confirms, name, body=name.encode())
    return confirms


def test_confirms_may_arrive_in_any_order() -> None:
    confirms = _three()
    answered = [_names(confirms.settle(tag, multiple=False)) for tag in (2, 3, 1)]
    assert answered == [["two"], ["three"], ["one"]]
    assert confirms.live == 0


def test_multiple_confirm_answers_all_pending_below() -> None:
    confirms = _three()
    confirms.settle(1, multiple=False)
    assert _names(confirms.settle(2, multiple=True)) == ["two"]
    assert confirms.settle(2, multiple=True) == []
    assert _names(confirms.settle(0, multiple=True)) == ["three"]


def test_unknown_confirm_tag_is_ignored() -> None:
    confirms = _three()
    assert confirms.settle(9, multiple=False) == []
    assert confirms.live == 3


def test_return_is_matched_by_content() -> None:
    confirms = _three()
    found = confirms.take_back(_return(body=b"two"))
    assert found is not None
    assert found.ticket == "two"
    assert [publish.returned is None for publish in confirms.in_flight.values()] == [
        True,
        False,
        True,
    ]


def test_return_with_equal_message_ids_is_matched_by_key() -> None:
    confirms: Confirms[str] = Confirms()
    _send(confirms, "stored", key="here", properties=_with("same"))
    _send(confirms, "lost", key="gone", properties=_with("same"))
    found = confirms.take_back(_return(key="gone", properties=_with("same")))
    assert found is not None
    assert found.ticket == "lost"


def test_equal_publishes_are_returned_in_order() -> None:
    confirms: Confirms[str] = Confirms()
    for name in ("first", "second"):
        _send(confirms, name)
    taken = [confirms.take_back(_return()) for _ in range(2)]
    assert [found.ticket for found in taken if found] == ["first", "second"]
    assert confirms.take_back(_return()) is None


def test_return_with_sorted_headers_is_matched() -> None:
    confirms: Confirms[str] = Confirms()
    _send(confirms, "other", properties=_with("x", {"b": 1, "a": 3}))
    _send(confirms, "mine", properties=_with("x", {"b": 1, "a": 2}))
    found = confirms.take_back(_return(properties=_with("x", {"a": 2, "b": 1})))
    assert found is not None
    assert found.ticket == "mine"


def test_return_without_bcc_header_is_matched() -> None:
    """RabbitMQ strips BCC. The earliest publish with equal exchange, key and body is used."""
    confirms: Confirms[str] = Confirms()
    _send(confirms, "other", body=b"x")
    _send(confirms, "mine", body=b"y", properties=_with("m", {"BCC": ["z"]}))
    found = confirms.take_back(_return(body=b"y", properties=_with("m")))
    assert found is not None
    assert found.ticket == "mine"


def test_unmatched_return_belongs_to_no_publish() -> None:
    confirms: Confirms[str] = Confirms()
    _send(confirms, "optional", mandatory=False)
    _send(confirms, "elsewhere", key="other")
    assert confirms.take_back(_return()) is None


def test_only_oldest_publish_times_out() -> None:
    confirms: Confirms[str] = Confirms()
    _send(confirms, "old", deadline=1.0)
    _send(confirms, "new", deadline=2.0)
    assert _names(confirms.expire(1.0)) == ["old"]
    assert confirms.expire(1.5) == []
    assert (confirms.live, confirms.abandon_count) == (1, 1)


def test_late_return_does_not_match_later_equal_publish() -> None:
    confirms: Confirms[str] = Confirms()
    _send(confirms, "old", deadline=1.0)
    confirms.expire(1.0)
    _send(confirms, "new", deadline=9.0)
    found = confirms.take_back(_return())
    assert found is not None
    assert found.ticket == "old"
    confirms.settle(1, multiple=False)
    (left,) = confirms.settle(2, multiple=False)
    assert (left.ticket, left.returned, confirms.live) == ("new", None, 0)


def test_end_of_channel_ends_all_pending_publishes() -> None:
    confirms: Confirms[str] = Confirms()
    _send(confirms, "old", deadline=1.0)
    _send(confirms, "new", deadline=2.0)
    confirms.expire(1.0)
    assert _names(confirms.end()) == ["new"]
    assert confirms.end() == []
