"""Where the commands on dead letters find a broker or a server, and what they remember."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from hopback.broker.named_brokers import BadBrokers
from hopback.cli.app import run
from hopback.cli.exits import Exit
from hopback.ops.cli.access import (
    OpsAccess,
    apply_settings,
    file_brokers,
    journal_names,
    resume_command,
)
from hopback.ops.cli.dlq_actions import redrive
from hopback.ops.cli.journal import state_folder


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


_FILE = """
[[brokers]]
name = "prod"
url = "amqp://ann@prod.test:1/orders?password_env=PROD"
management = "http://prod.test:2"

[[brokers]]
name = "lab"
url_env = "LAB"
vhosts = ["a", "b/c"]
dlq = ["failed=orders"]
topologies = ["raffle"]
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file with three brokers, two of them of one entry."""
    monkeypatch.setenv("LAB", "amqp://lab.test:3")
    file = tmp_path / "hopback.toml"
    file.write_text(_FILE)
    return file


def test_a_broker_is_named_by_the_settings_file(settings: Path) -> None:
    """With everything that the file says of it; what the options say goes before."""
    found = {each.name: each for each in file_brokers(settings)}
    assert list(found) == ["prod", "lab:a", "lab:b/c"]
    access = apply_settings(found["lab:b/c"], OpsAccess(named=("more",)))
    assert (access.broker, access.named, access.topologies) == (
        "amqp://lab.test:3/b%2Fc",
        ("failed=orders", "more"),
        ("raffle",),
    )
    assert apply_settings(found["prod"], OpsAccess()).management == "http://prod.test:2"
    assert (
        apply_settings(found["prod"], OpsAccess(management="http://x.test")).management
        == "http://x.test"
    )
    assert len(set(journal_names(found.values()))) == 3


def test_two_names_for_one_virtual_host_are_refused(settings: Path) -> None:
    """Their jobs could not be told apart."""
    settings.write_text(_FILE + '[[brokers]]\nname = "again"\nurl = "amqp://lab.test:3/a"\n')
    with pytest.raises(BadBrokers, match="'lab:a' and 'again' are the same broker"):
        file_brokers(settings)


@pytest.mark.parametrize("command", [["dlq", "ls"], ["doctor"]], ids=" ".join)
def test_a_name_that_is_not_there_is_answered_with_those_that_are(
    command: list[str], settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And with the one that was meant."""
    assert run([*command, "--config", str(settings), "--broker", "lab:aa"]) == Exit.NOT_FOUND
    said = capsys.readouterr().err
    assert "(prod, lab:a, lab:b/c), got 'lab:aa'" in said
    assert "Did you mean lab:a?" in said


def test_the_command_to_resume_names_the_broker_again(settings: Path) -> None:
    """By its name, in the same file."""
    said = ["orders.dlq", "--broker", "lab:a", "--config", str(settings)]
    with redrive.make_context("redrive", said):
        again = resume_command("j-1")
    assert again == f"hopback jobs resume j-1 --broker lab:a --config {settings}"
