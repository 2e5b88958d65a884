"""Where the management API is looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.broker.management import ManagementAddress, virtual_host
from hopback.errors import ConnectionFailed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("broker", "management", "url"),
    [
        ("amqp://mq.example", None, "http://mq.example:15672"),
        ("amqp://mq.example:5999/shop", None, "http://mq.example:15672"),
        ("amqps://mq.example:5671", None, "https://mq.example:15671"),
        ("amqp://[::1]:5672", None, "http://[::1]:15672"),
        ("amqp://u:p@a.example:5672,b.example:5673/v", None, "http://a.example:15672"),
        ("amqp://a.example,b.example?heartbeat=9", None, "http://a.example:15672"),
        ("amqp://mq.example", "http://other:8080", "http://other:8080"),
        ("amqp://mq.example", "https://other/rabbit/", "https://other:15671/rabbit"),
        (None, "http://other:8080/api", "http://other:8080"),
    ],
)
def test_management_address_defaults_to_amqp_host(
    broker: str | None, management: str | None, url: str
) -> None:
    assert ManagementAddress.derive(broker, management).url == url


@pytest.mark.parametrize(
    ("broker", "management", "expected"),
    [
        ("amqp://ann:s%40crt@mq/v", None, ("ann", "s@crt")),
        ("amqp://ann:one@mq/v", "http://bob:two@mq", ("bob", "two")),
        ("amqp://ann:one@mq/v", "http://mq", ("ann", "one")),
        ("amqp://mq", "http://mq", ("guest", "guest")),
    ],
)
def test_management_credentials_override_those_of_broker(
    broker: str, management: str | None, expected: tuple[str, str]
) -> None:
    address = ManagementAddress.derive(broker, management)
    assert (address.user, address.password) == expected


def test_certificates_of_amqp_address_are_used() -> None:
    found = ManagementAddress.derive("amqps://mq/v?cacertfile=/ca&certfile=/c&keyfile=/k")
    assert (found.ca_file, found.cert_file, found.key_file) == ("/ca", "/c", "/k")


def test_printed_address_has_no_password() -> None:
    address = ManagementAddress.derive("amqp://ann:hidden@mq")
    assert "hidden" not in repr(address)
    assert "ann" in repr(address)


@pytest.mark.parametrize(
    ("broker", "management"),
    [
        ("http://x:hidden@mq", None),
        (None, "amqp://x:hidden@mq"),
        ("amqp://x:hidden@mq:notaport", None),
        ("amqp://", None),
        ("amqp://x:hidden@a..b", None),
        (None, "http://x:hidden@é..b"),
        (None, None),
    ],
)
def test_invalid_address_is_refused_without_password(
    broker: str | None, management: str | None
) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        ManagementAddress.derive(broker, management)
    assert "hidden" not in str(caught.value)


def test_password_in_file_or_variable_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("from the file\n")
    monkeypatch.setenv("MQ_PASSWORD", "from the variable")
    by_file = ManagementAddress.derive(f"amqp://ann@mq/v?password_file={tmp_path / 'secret'}")
    by_name = ManagementAddress.derive("amqp://ann@mq/v?password_env=MQ_PASSWORD")
    assert (by_file.password, by_name.password) == ("from the file", "from the variable")
    with pytest.raises(ConnectionFailed, match="expected the password"):
        ManagementAddress.derive("amqp://ann@mq/v?password_env=MQ_NOT_SET")


@pytest.mark.parametrize(
    ("broker", "expected"),
    [("amqp://mq", "/"), ("amqp://mq/", "/"), ("amqp://mq/shop", "shop"), ("amqp://mq/%2F", "/")],
)
def test_virtual_host_is_the_path(broker: str, expected: str) -> None:
    assert virtual_host(broker) == expected
