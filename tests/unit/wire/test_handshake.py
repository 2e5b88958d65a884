"""The opening of a connection, both halves against each other."""

from __future__ import annotations

import pytest

from hopback.errors import ConnectionFailed, LoginRefused
from hopback.wire import Credentials
from hopback.wire.events import MethodReceived
from hopback.wire.frames import ConnectionState
from hopback.wire.handshake import ClientHandshake, ServerHandshake, Tuning
from tests.unit.wire.pair import Pair


def _check(mechanism: str, response: bytes) -> str | None:
    if mechanism == "EXTERNAL":
        return response.decode() or "certificate"
    return "ann" if response == b"\0ann\0s\xc3\xa9cret" else None


_ANN = Credentials("ann", lambda: "sécret")


def _halves(
    pair: Pair,
    credentials: Credentials = _ANN,
    *,
    virtual_host: str = "/",
    mechanisms: str = "PLAIN EXTERNAL",
    ours: Tuning | None = None,
    theirs: Tuning | None = None,
) -> tuple[ClientHandshake, ServerHandshake]:
    client = ClientHandshake(
        pair.client, credentials, virtual_host=virtual_host, tuning=ours, name="shop"
    )
    server = ServerHandshake(
        pair.server,
        _check,
        tuning=theirs,
        properties={"product": "Test", "version": "4.0.5"},
        mechanisms=mechanisms,
    )
    return client, server


@pytest.mark.parametrize("step", [None, 1])
def test_handshake_opens_both_sides(step: int | None) -> None:
    pair = Pair(step=step)
    client, server = _halves(pair)
    pair.shake_hands(client, server)
    assert client.done
    assert server.done
    assert pair.client.state is pair.server.state is ConnectionState.OPEN
    assert client.server_properties == {"product": "Test", "version": "4.0.5"}
    assert server.client_properties["connection_name"] == "shop"
    assert server.client_properties["capabilities"]["consumer_cancel_notify"] is True
    assert (server.user, server.virtual_host) == ("ann", "/")


def test_external_sends_no_password() -> None:
    pair = Pair()
    client, server = _halves(pair, Credentials("", mechanism="EXTERNAL"))
    pair.shake_hands(client, server)
    assert server.user == "certificate"


def test_wrong_password_is_refused_without_showing_it() -> None:
    pair = Pair()
    client, server = _halves(pair, Credentials("ann", lambda: "hunter2"))
    with pytest.raises(ConnectionFailed, match=r"403 ACCESS_REFUSED.*'ann'") as caught:
        pair.shake_hands(client, server)
    assert "hunter2" not in str(caught.value)


def test_unknown_virtual_host_raises_login_refused() -> None:
    pair = Pair()
    client, server = _halves(pair, virtual_host="nowhere")
    with pytest.raises(LoginRefused, match=r"530 NOT_ALLOWED.*nowhere"):
        pair.shake_hands(client, server)


@pytest.mark.parametrize(
    ("code", "text", "lasts"),
    [
        (530, "NOT_ALLOWED - vhost shop not found", True),
        (530, "NOT_ALLOWED - access to vhost 'shop' refused for user 'ann'", True),
        (
            530,
            "NOT_ALLOWED - access to vhost 'shop' refused for user 'ann': connection limit (1) is "
            "reached",
            False,
        ),
        (530, "NOT_ALLOWED - connection limit (100) is reached", False),
        (541, "INTERNAL_ERROR - access to vhost 'shop' refused: vhost 'shop' is down", False),
        (320, "CONNECTION_FORCED - broker forced connection closure", False),
    ],
)
def test_temporary_refusal_differs_from_permanent_one(code: int, text: str, lasts: bool) -> None:
    """A virtual host that is starting or full may accept the next attempt."""
    pair = Pair()
    client, _ = _halves(pair)
    closed = {"reply_code": code, "reply_text": text, "class_id": 0, "method_id": 0}
    with pytest.raises(ConnectionFailed) as caught:
        client.on_event(MethodReceived(0, "connection.close", closed))
    assert isinstance(caught.value, LoginRefused) is lasts


def test_mechanism_that_is_not_offered_is_not_tried() -> None:
    """No password is sent."""
    pair = Pair()
    client, server = _halves(pair, mechanisms="EXTERNAL")
    with pytest.raises(ConnectionFailed, match="PLAIN, it offers EXTERNAL"):
        pair.shake_hands(client, server)
    assert b"s\xc3\xa9cret" not in pair.client.take()


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        (Tuning(10, 8192, 30), Tuning(20, 131_072, 60), Tuning(10, 8192, 30)),
        (Tuning(50, 131_072, 60), Tuning(20, 8192, 10), Tuning(20, 8192, 10)),
        (Tuning(0, 0, 60), Tuning(20, 8192, 10), Tuning(20, 8192, 10)),
        (Tuning(20, 8192, 0), Tuning(20, 8192, 60), Tuning(20, 8192, 0)),
    ],
)
def test_lower_tuning_limit_holds_and_zero_is_unlimited(
    ours: Tuning, theirs: Tuning, agreed: Tuning
) -> None:
    pair = Pair()
    client, server = _halves(pair, ours=ours, theirs=theirs)
    pair.shake_hands(client, server)
    assert client.tuning == server.tuning == agreed
    assert pair.client.frame_max == pair.server.frame_max == agreed.frame_max


def test_client_that_tunes_beyond_offer_is_refused() -> None:
    pair = Pair()
    _, server = _halves(pair, theirs=Tuning(10, 8192, 60))
    pair.pump()
    server.on_event(pair.seen_by_server.pop())
    pair.client.receive(pair.server.take())
    pair.client.send(
        0,
        "connection.start-ok",
        mechanism="PLAIN",
        response=b"\0ann\0s\xc3\xa9cret",
        locale="en_US",
    )
    pair.pump()
    server.on_event(pair.seen_by_server.pop())
    pair.pump()
    pair.client.send(0, "connection.tune-ok", channel_max=10, frame_max=16_384, heartbeat=1)
    pair.pump()
    server.on_event(pair.seen_by_server.pop())
    assert pair.server.state is ConnectionState.SERVER_CLOSING
