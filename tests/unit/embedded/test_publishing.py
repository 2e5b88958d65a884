"""Checks of published messages, and delivered messages."""

from __future__ import annotations

import pytest

from hopback.broker.embedded import EventKind, Refusal
from hopback.fields import FieldValue, Headers, Int8, Timestamp
from hopback.message import Message, Properties
from tests.unit.embedded.node_setup import Client, Setup


def _refused(client: Client, headers: Headers | None = None, **properties: FieldValue) -> Refusal:
    content = Properties(headers=headers or {}, **properties)  # type: ignore[arg-type]
    with pytest.raises(Refusal) as caught:
        client.channel.publish(Message("", "q", b"m", content))
    return caught.value


def test_other_user_id_is_refused() -> None:
    client = Client(Setup())
    client.classic("q")
    client.put("q", user_id="guest")
    assert _refused(client, user_id="alice").text == (
        "PRECONDITION_FAILED - user_id property set to 'alice' but authenticated user was 'guest'"
    )


@pytest.mark.parametrize(("version", "refused"), [("3.10.8", True), ("4.0.5", False)])
def test_unknown_delivery_mode_is_refused_before_4_0(version: str, refused: bool) -> None:
    client = Client(Setup(version))
    client.classic("q")
    if refused:
        assert _refused(client, delivery_mode=3).text == (
            "PRECONDITION_FAILED - invalid message: {delivery_mode_unknown,3}"
        )
    else:
        assert client.put("q", delivery_mode=3) == [EventKind.ENQUEUED]


@pytest.mark.parametrize(("version", "mib"), [("3.10.8", 128), ("4.0.5", 16)])
def test_body_size_is_limited(version: str, mib: int) -> None:
    """128 MiB before 4.0, 16 MiB since."""
    client = Client(Setup(version))
    client.classic("q")
    limit = mib * 1024 * 1024
    assert client.setup.node.profile.max_body_bytes == limit
    if mib == 16:
        client.channel.publish(Message("", "q", bytes(limit)))
        with pytest.raises(Refusal, match=f"message size {limit + 1} is larger than") as caught:
            client.channel.publish(Message("", "q", bytes(limit + 1)))
        assert caught.value.code == 406


def test_headers_beyond_frame_close_connection() -> None:
    client = Client(Setup())
    client.classic("q")
    # 14 bytes before the properties, 4 for the table's length, 2 for the key, 5 for the string.
    room = 131_072 - 14 - 4 - 2 - 5
    client.put("q", headers={"a": "x" * room})
    refusal = _refused(client, headers={"a": "x" * (room + 1)})
    assert refusal.text == (
        "FRAME_ERROR - type 2, all octets = <<>>: {frame_too_large,131073,131064}"
    )
    assert not client.session.is_open


def test_cc_header_must_be_an_array() -> None:
    client = Client(Setup())
    client.classic("q")
    client.put("q", headers={"CC": [1, "q"]})
    assert _refused(client, headers={"CC": "q"}).text == (
        'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}'
    )


@pytest.mark.parametrize(("version", "order"), [("3.10.8", "bca"), ("4.0.5", "abc")])
def test_headers_are_sorted_from_4_0(version: str, order: str) -> None:
    client = Client(Setup(version))
    client.classic("q")
    client.put("q", headers={"b": 1, "c": 2, "a": 3})
    assert "".join(client.get("q").properties.headers) == order


def test_every_property_and_type_is_delivered_unchanged() -> None:
    client = Client(Setup())
    client.classic("q")
    properties = Properties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"deep": {"list": [Int8(1), Timestamp(5), None, {"x": b"y"}]}},
        delivery_mode=1,
        priority=7,
        correlation_id="c",
        reply_to="r",
        message_id="m",
        timestamp=9,
        type="t",
        app_id="a",
        cluster_id="k",
    )
    client.channel.publish(Message("", "q", b"body", properties))
    taken = client.get("q")
    assert taken.properties == properties
    assert repr(taken.properties) == repr(properties)


def test_stored_messages_cannot_be_modified() -> None:
    client = Client(Setup())
    for name in ("one", "two"):
        client.classic(name)
        client.bind("amq.fanout", name)
    inner: list[FieldValue] = [1]
    headers: dict[str, FieldValue] = {"list": inner}
    client.put("", exchange="amq.fanout", headers=headers)
    inner.append(2)
    first = client.get("one").properties.headers["list"]
    assert isinstance(first, list)
    first.append(3)
    assert client.get("two").properties.headers == {"list": [1]}


@pytest.mark.parametrize(
    ("version", "order"),
    [("3.10.8", "none 0 9 5 1 "), ("4.0.5", "9 5 none 0 1 "), ("4.3.6", "9 5 none 1 0 ")],
)
def test_priorities_of_quorum_queues_depend_on_version(version: str, order: str) -> None:
    client = Client(Setup(version))
    client.quorum("q")
    for priority in (None, 0, 9, 5, 1):
        client.put("q", "none" if priority is None else str(priority), priority=priority)
    assert "".join(f"{taken.body.decode()} " for taken in client.drain("q")) == order


def test_two_high_priorities_precede_each_normal_one_on_4_0() -> None:
    client = Client(Setup("4.0.5"))
    client.quorum("q")
    client.put("q", *"nnn", priority=4)
    client.put("q", *"hhhhh", priority=5)
    assert "".join(taken.body.decode() for taken in client.drain("q")) == "hhnhhnhn"


def test_priorities_of_classic_queues_need_argument() -> None:
    client = Client(Setup())
    client.classic("q", {"x-max-priority": 5})
    for priority in (None, 0, 1, 9, 5, 3):
        client.put("q", str(priority), priority=priority)
    held = client.get("q")
    client.channel.nack(held.tag, requeue=True)
    bodies = [taken.body.decode() for taken in client.drain("q")]
    assert bodies == ["9", "5", "3", "1", "None", "0"]
