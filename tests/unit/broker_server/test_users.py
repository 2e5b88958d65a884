"""Authentication by name and password, and guest from loopback only."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from hopback.broker.server.users import Users
from hopback.wire.tables import encode_entries

if TYPE_CHECKING:
    from hopback.fields import Headers

_USERS = Users({"guest": "guest", "ann": "s3cret:ü"})


@pytest.mark.parametrize(
    ("response", "peer", "found"),
    [
        (b"\0guest\0guest", "127.0.0.1", "guest"),
        (b"\0guest\0guest", "::1", "guest"),
        (b"\0guest\0guest", "::ffff:127.0.0.1", "guest"),
        (b"\0guest\0guest", "192.0.2.1", None),
        (b"\0guest\0guest", "", None),
        (b"\0ann\0" + "s3cret:ü".encode(), "192.0.2.1", "ann"),
        (b"other\0ann\0" + "s3cret:ü".encode(), "192.0.2.1", "ann"),
        (b"\0ann\0guest", "127.0.0.1", None),
        (b"\0nobody\0", "127.0.0.1", None),
        (b"guest", "127.0.0.1", None),
        (b"\0\xff\0\xff", "127.0.0.1", None),
        (b"\0guest\0guest\0", "127.0.0.1", None),
    ],
)
def test_plain_response_is_checked(response: bytes, peer: str, found: str | None) -> None:
    assert _USERS.sasl("PLAIN", response, peer) == found
    assert _USERS.sasl("AMQPLAIN", response, peer) is None
    assert _USERS.sasl("EXTERNAL", response, peer) is None


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({"LOGIN": "guest", "PASSWORD": "guest"}, "guest"),
        ({"PASSWORD": "s3cret:ü", "LOGIN": "ann"}, "ann"),
        ({"LOGIN": "guest", "PASSWORD": "ann"}, None),
        ({"LOGIN": "guest"}, None),
        ({"LOGIN": 1, "PASSWORD": b"guest"}, None),
        ({}, None),
    ],
)
def test_amqplain_response_is_checked(table: Headers, found: str | None) -> None:
    assert _USERS.sasl("AMQPLAIN", encode_entries(table), "127.0.0.1") == found


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Basic " + base64.b64encode(b"guest:guest").decode(), "guest"),
        ("basic " + base64.b64encode("ann:s3cret:ü".encode()).decode(), "ann"),
        ("Basic " + base64.b64encode(b"guest").decode(), None),
        ("Basic ###", None),
        ("Basic é", None),
        ("Bearer abc", None),
        ("", None),
    ],
)
def test_http_authorization_is_checked(header: str, found: str | None) -> None:
    assert _USERS.basic(header, "127.0.0.1") == found


def test_guest_over_http_is_limited_to_loopback() -> None:
    header = "Basic " + base64.b64encode(b"guest:guest").decode()
    assert _USERS.basic(header, "203.0.113.9") is None
