"""Permissions, accounts and the options that give them."""

from __future__ import annotations

import pytest

from hopback.broker.embedded.rights import Right
from hopback.broker.server.users import (
    Account,
    Permission,
    Permissions,
    TopicPermission,
    UserRights,
)
from hopback.cli.app import run


def _rights(configure: str = "", write: str = "", read: str = "") -> tuple[UserRights, Permissions]:
    permissions = Permissions()
    permissions.put("ann", "/", Permission(configure, write, read))
    return UserRights(permissions, "ann", "/"), permissions


def test_a_pattern_is_searched_in_the_name() -> None:
    """As in RabbitMQ: anywhere, unless it says otherwise; an empty one matches nothing."""
    rights, permissions = _rights("orders", "^orders$", "")
    assert rights.allows(Right.CONFIGURE, "my.orders.dlq")
    assert rights.allows(Right.WRITE, "orders")
    assert not rights.allows(Right.WRITE, "orders.dlq")
    assert not rights.allows(Right.READ, "orders")
    assert not UserRights(permissions, "ann", "other").allows(Right.READ, "orders")
    assert not UserRights(permissions, "bob", "/").allows(Right.CONFIGURE, "orders")


def test_topics_are_free_until_something_is_said_about_them() -> None:
    """Then only the keys that match, with the user's name in the pattern."""
    rights, permissions = _rights()
    assert rights.allows_topic(Right.WRITE, "events", "any")
    permissions.put_topic("ann", "/", TopicPermission("events", "^{username}\\.", "^$"))
    assert rights.allows_topic(Right.WRITE, "events", "ann.created")
    assert not rights.allows_topic(Right.WRITE, "events", "bob.created")
    assert not rights.allows_topic(Right.READ, "events", "ann.created")
    assert rights.allows_topic(Right.WRITE, "others", "bob.created")
    permissions.forget_user("ann")
    assert [*permissions, *permissions.topics()] == []


def test_a_pattern_that_cannot_be_read_is_refused() -> None:
    """Before anything depends on it."""
    with pytest.raises(ValueError, match="invalid_regexp"):
        Permission(".*", "(", ".*")


def test_a_hash_of_rabbitmq_is_understood() -> None:
    """One that RabbitMQ 3.10 made for the password `p`; and there is none for nobody."""
    theirs = Account("LYlDxBlse32Gg/G6z/z73ienG9AXeDSptPG/+RBVCMr301yt")
    assert theirs.accepts(b"p")
    assert not theirs.accepts(b"q")
    assert not Account("").accepts(b"")
    assert not Account.with_password("").accepts(b"")
    assert Account.with_password("ü").accepts("ü".encode())
    with pytest.raises(ValueError, match="base64"):
        Account("no hash")
    with pytest.raises(ValueError, match="hashing_algorithm"):
        Account("", (), "md5")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--permission", "ann", "/", ".*", ".*", ".*"], "expected a user of --user (guest)"),
        (["--permission", "guest", "x", ".*", ".*", ".*"], "expected a vhost of --vhost (/)"),
        (["--permission", "guest", "/", "(", "", ""], "invalid_regexp"),
        (["--tags", "ann", "monitoring"], "expected a user of --user (guest)"),
    ],
)
def test_options_that_name_nobody_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what there is."""
    assert run(["broker", "--port", "0", *options]) == 2
    assert said in capsys.readouterr().err
