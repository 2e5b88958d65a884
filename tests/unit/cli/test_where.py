"""Where the commands on dead letters find a broker or a server, and what they remember."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from hopback.cli.app import run
from hopback.cli.database import state_folder
from hopback.cli.dlq_actions import redrive
from hopback.cli.where import resume_command


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests says nothing."""
    for name in [name for name in os.environ if name.startswith("HOPBACK_")]:
        if name != "HOPBACK_TEST_RUN":
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("said", "again"),
    [
        ([], ""),
        (["--broker", "amqp://mq/shop"], " --broker amqp://mq/shop"),
        (["--broker", "amqp://ann:hunter2@mq/shop"], " --broker 'amqp://ann:…@mq/shop'"),
        (["--store", "postgresql://ann:hunter@2@db/x"], " --store 'postgresql://ann:…@db/x'"),
        (["--server", "http://mq:8080", "--token", "hunter2"], " --server http://mq:8080"),
        (
            ["--topology", "raffle", "--topology", "my shop.toml", "--amqp-only"],
            " --amqp-only --topology raffle --topology 'my shop.toml'",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command_to_resume_says_again_what_was_said(said: list[str], again: str) -> None:
    """Except for passwords, tokens, and what the environment says anyway."""
    context = redrive.make_context("redrive", ["orders.dlq", *said])
    with context:
        assert resume_command("j-1") == f"hopback jobs resume j-1{again}"


def test_what_the_environment_says_is_not_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is still there when the command is repeated."""
    monkeypatch.setenv("HOPBACK_BROKER", "amqp://ann:hunter2@mq/shop")
    with redrive.make_context("redrive", ["orders.dlq"]):
        assert click.get_current_context().params["broker"] == "amqp://ann:hunter2@mq/shop"
        assert resume_command("j-1") == "hopback jobs resume j-1"


def test_the_state_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the platform has it; an empty variable counts as none."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert state_folder() == Path("/var/state/hopback")
    monkeypatch.setenv("XDG_STATE_HOME", "")
    assert state_folder() == Path.home() / ".local" / "state" / "hopback"


def test_a_wrong_broker_is_a_usage_error_without_its_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Something else than an address."""
    assert run(["dlq", "ls", "--broker", "http://ann:hunter2@mq"]) == 2
    assert "hunter2" not in capsys.readouterr().err


def test_an_archive_is_read_before_anything_is_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line that is none is named; no broker is needed to find it."""
    file = tmp_path / "letters.ndjson"
    file.write_text('{"hopback": 1}\n')
    assert run(["dlq", "import", str(file), "--yes"]) == 1
    assert "letters.ndjson, line 1," in capsys.readouterr().err
