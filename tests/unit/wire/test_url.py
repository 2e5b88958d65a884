"""URLs, options and secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.errors import ConnectionFailed
from hopback.wire.url import Address, TlsOptions, parse_url

if TYPE_CHECKING:
    from pathlib import Path


def _login(url: str) -> bytes:
    return parse_url(url).credentials.response()


@pytest.mark.parametrize(
    ("url", "hosts", "virtual_host"),
    [
        ("amqp://", (("localhost", 5672),), "/"),
        ("amqp://h", (("h", 5672),), "/"),
        ("amqps://h", (("h", 5671),), "/"),
        ("amqp://h:99/", (("h", 99),), "/"),
        ("amqp://h/%2f", (("h", 5672),), "/"),
        ("amqp://b%C3%BCro.example.", (("büro.example.", 5672),), "/"),
        (f"amqp://{'a' * 63}", (("a" * 63, 5672),), "/"),
        ("amqp://h/a%2Fb", (("h", 5672),), "a/b"),
        ("amqp://h/caf%C3%A9", (("h", 5672),), "café"),
        ("amqp://[::1]:5673/v", (("::1", 5673),), "v"),
        ("amqp://u:p@a,b:2,[::1]/v", (("a", 5672), ("b", 2), ("::1", 5672)), "v"),
        ("amqp://a,[::1]:7?heartbeat=5", (("a", 5672), ("::1", 7)), "/"),
        ("amqp://[::1],[::2]:7,b/v#", (("::1", 5672), ("::2", 7), ("b", 5672)), "v"),
        ("amqp://h/v\n", (("h", 5672),), "v"),
    ],
)
def test_url_hosts_and_virtual_host_are_parsed(
    url: str, hosts: tuple[tuple[str, int], ...], virtual_host: str
) -> None:
    found = parse_url(url)
    assert (found.hosts, found.virtual_host) == (hosts, virtual_host)


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("amqp://h", b"\0guest\0guest"),
        ("amqp://ann:p%40ss%2Fw%3Ard@h", b"\0ann\0p@ss/w:rd"),
        ("amqp://ann:@h", b"\0ann\0"),
        ("amqp://a%3Ab:c@h", b"\0a:b\0c"),
        ("amqp://ann:p@ss@h", b"\0ann\0p@ss"),
        ("amqp://ann:p[ss@h,[::1]", b"\0ann\0p[ss"),
    ],
)
def test_url_user_and_password_are_parsed(url: str, login: bytes) -> None:
    assert _login(url) == login


def test_url_options_are_parsed() -> None:
    found = parse_url(
        "amqps://h?heartbeat=5&connection_timeout=3&channel_max=9&frame_max=8192&verify=verify_none"
        "&cacertfile=/ca&certfile=/c&keyfile=/k&server_name_indication=broker.local"
    )
    assert (found.heartbeat, found.connection_timeout) == (5, 3)
    assert (found.channel_max, found.frame_max) == (9, 8192)
    assert found.tls == TlsOptions("/ca", "/c", "/k", verify=False, server_name="broker.local")


def test_amqps_verifies_by_default() -> None:
    assert parse_url("amqps://h").tls == TlsOptions(verify=True)
    assert parse_url("amqp://h").tls is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://h", "scheme"),
        ("h:5672", "scheme"),
        ("amqp://h:0", "port"),
        ("amqp://h:99999", "port"),
        ("amqp://h:port", "host"),
        ("amqp://a..b/", "host name"),
        ("amqp://b,.a:5673", "host name"),
        (f"amqps://{'a' * 64}.example/", "host name"),
        ("amqp://%FF/", "host name"),
        ("amqp://a,[::1/v", "host"),
        ("amqp://a,::1/v", "host"),
        ("amqp://h?x=1#y", "%23"),
        ("amqp://h/a/b", "%2F"),
        ("amqp://h?heartbeat=-1", "heartbeat"),
        ("amqp://h?heartbeat=x", "heartbeat"),
        ("amqp://h?frame_max=100", "frame_max"),
        ("amqp://h?colour=red", "colour"),
        ("amqp://h?auth_mechanism=magic", "auth_mechanism"),
        ("amqp://h?cacertfile=/x", "amqps"),
        ("amqp://h?server_name_indication=x", "amqps"),
        ("amqps://h?verify=maybe", "verify"),
        ("amqps://h?server_name_indication=a..b", "server_name_indication: .* host name"),
        ("amqp://h/v#x", "%23"),
    ],
)
def test_invalid_url_is_refused_without_password(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "amqp://u:hunter2@h:x",
        "amqp://u:hunter2@h?x=1",
        "ftp://u:hunter2@h",
        "amqp://u:hunter2@h/a/b",
    ],
)
def test_no_url_error_shows_password(url: str) -> None:
    with pytest.raises(ValueError, match="broker URL") as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)


def test_printed_address_has_no_password() -> None:
    found = parse_url("amqp://ann:hunter2@a,[::1]:9/v?password_env=PW")
    assert str(found) == "amqp://a:5672,[::1]:9/v"
    for shown in (repr(found), str(found), repr(found.credentials), f"{found.credentials}"):
        assert "hunter2" not in shown
    assert isinstance(found, Address)


def test_password_may_be_in_file(tmp_path: Path) -> None:
    """It is read for each connection."""
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    credentials = parse_url(f"amqp://ann@h?password_file={secret}").credentials
    assert credentials.response() == b"\0ann\0first"
    secret.write_text("second")
    assert credentials.response() == b"\0ann\0second"
    secret.unlink()
    with pytest.raises(ConnectionFailed, match="No such file"):
        credentials.response()


def test_password_may_be_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = parse_url("amqp://ann@h?password_env=HB_TEST_PW").credentials
    monkeypatch.setenv("HB_TEST_PW", "secret")
    assert credentials.response() == b"\0ann\0secret"
    monkeypatch.delenv("HB_TEST_PW")
    with pytest.raises(ConnectionFailed, match="HB_TEST_PW"):
        credentials.response()


def test_external_needs_no_password() -> None:
    assert _login("amqps://h?auth_mechanism=external") == b""
