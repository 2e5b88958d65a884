"""`hopback store`: migrations by one command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.cli.app import run
from hopback.cli.store import _until_stopped
from hopback.clock import SystemClock
from hopback.runtime.relay import Relay
from hopback.store import LATEST, Outbox, open_database

if TYPE_CHECKING:
    from pathlib import Path

    from hopback.message import Message


def test_store_migrate_is_repeatable_and_status_shows_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`status` does not create the file."""
    file = tmp_path / "shop.db"
    url = f"sqlite:///{file}"
    status = ["store", "status", "--database", url, "--detailed-exit-code"]
    assert run(status) == 10
    assert not file.exists()
    assert run(["store", "migrate", "--database", url]) == 0
    assert run(["store", "migrate", "--database", url]) == 0
    assert run(status) == 0
    versions = ", ".join(str(version) for version in range(1, LATEST + 1))
    assert capsys.readouterr().out.splitlines() == [
        f"version 0 of {LATEST}: run `hopback store migrate`",
        f"Applied {versions}: the database is at version {LATEST}.",
        f"Nothing to do: the database is at version {LATEST}.",
        f"version {LATEST} of {LATEST}: up to date",
    ]


def test_store_database_is_read_from_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPBACK_DATABASE", f"sqlite:///{tmp_path / 'shop.db'}")
    assert run(["store", "migrate"]) == 0
    assert (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("postgresql://user:hunter2@127.0.0.1:1/shop", 7),
        ("sqlite:////no/such/folder/shop.db", 7),
        ("sqlite:////", 7),
        ("mysql://user:hunter2@host/shop", 1),
        ("hunter2", 1),
    ],
)
def test_unusable_database_is_reported_without_password(
    url: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["store", "migrate", "--database", url]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert "Error:" in said.err
    assert "hunter2" not in said.err


def test_relay_without_tables_names_migrate_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--database", f"sqlite:///{tmp_path / 'shop.db'}", "--broker", "amqp://localhost/"]
    assert run(["store", "relay", *where]) == 6
    said = capsys.readouterr().err
    assert "the database is at version 0" in said
    assert "hopback store migrate" in said


def test_relay_without_broker_address_is_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--database", "sqlite:///x.db", "--broker", "http://user:hunter2@localhost/"]
    assert run(["store", "relay", *where]) == 2
    assert "hunter2" not in capsys.readouterr().err


async def test_relay_with_unexpected_error_raises_it(tmp_path: Path) -> None:
    """Only a signal ends it without an error."""

    class BrokenOutbox(Outbox):
        async def claim(self, most_slots: int = 16) -> list[int]:
            raise ValueError("expected a slot")

    async def publish(message: Message) -> None:
        raise AssertionError(message)

    engine = open_database(f"sqlite:///{tmp_path}/shop.db")
    try:
        with pytest.raises(ValueError, match="expected a slot"):
            await _until_stopped(Relay(BrokenOutbox(engine, "test", SystemClock()), publish), 0.0)
    finally:
        await engine.dispose()
