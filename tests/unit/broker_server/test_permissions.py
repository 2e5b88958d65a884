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


def test_permission_pattern_is_searched_in_name() -> None:
    """An empty pattern matches no name."""
    rights, permissions = _rights("orders", "^orders$", "")
    assert rights.allows(Right.CONFIGURE, "my.orders.dlq")
    assert rights.allows(Right.WRITE, "orders")
    assert not rights.allows(Right.WRITE, "orders.dlq")
    assert not rights.allows(Right.READ, "orders")
    assert not UserRights(permissions, "ann", "other").allows(Right.READ, "orders")
    assert not UserRights(permissions, "bob", "/").allows(Right.CONFIGURE, "orders")


def test_topic_permissions_apply_once_set() -> None:
    rights, permissions = _rights()
    assert rights.allows_topic(Right.WRITE, "events", "any")
    permissions.put_topic("ann", "/", TopicPermission("events", "^{username}\\.", "^$"))
    assert rights.allows_topic(Right.WRITE, "events", "ann.created")
    assert not rights.allows_topic(Right.WRITE, "events", "bob.created")
    assert not rights.allows_topic(Right.READ, "events", "ann.created")
    assert rights.allows_topic(Right.WRITE, "others", "bob.created")
    permissions.forget_user("ann")
    assert [*permissions, *permissions.topics()] == []


def test_invalid_permission_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid_regexp"):
        Permission(".*", "(", ".*")


def test_password_hash_of_rabbitmq_is_accepted() -> None:
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
def test_options_with_unknown_user_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["broker", "--port", "0", *options]) == 2
    assert said in capsys.readouterr().err
