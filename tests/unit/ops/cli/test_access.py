"""Where the dead-letter commands find a broker or a server, and the state they keep."""

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
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's environment variables."""
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
def test_resume_command_repeats_options_without_secrets(said: list[str], again: str) -> None:
    context = redrive.make_context("redrive", ["orders.dlq", *said])
    with context:
        assert resume_command("j-1") == f"hopback jobs resume j-1{again}"


def test_resume_command_omits_options_set_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPBACK_BROKER", "amqp://ann:hunter2@mq/shop")
    with redrive.make_context("redrive", ["orders.dlq"]):
        assert click.get_current_context().params["broker"] == "amqp://ann:hunter2@mq/shop"
        assert resume_command("j-1") == "hopback jobs resume j-1"


def test_state_folder_follows_xdg_state_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable is ignored."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert state_folder() == Path("/var/state/hopback")
    monkeypatch.setenv("XDG_STATE_HOME", "")
    assert state_folder() == Path.home() / ".local" / "state" / "hopback"


def test_invalid_broker_url_is_usage_error_without_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["dlq", "ls", "--broker", "http://ann:hunter2@mq"]) == 2
    assert "hunter2" not in capsys.readouterr().err


def test_import_names_invalid_archive_line_before_connecting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_broker_name_selects_its_settings(settings: Path) -> None:
    """Command options override the file."""
    found = {each.name: each for each in file_brokers(settings)}
    assert list(found) == ["prod", "lab:a", "lab:b/c"]
    access = apply_settings(found["lab:b/c"], OpsAccess(dlq=("more",)))
    assert (access.broker, access.dlq, access.topologies) == (
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


def test_two_names_for_same_virtual_host_are_refused(settings: Path) -> None:
    """Their jobs could not be distinguished."""
    settings.write_text(_FILE + '[[brokers]]\nname = "again"\nurl = "amqp://lab.test:3/a"\n')
    with pytest.raises(BadBrokers, match="'lab:a' and 'again' are the same broker"):
        file_brokers(settings)


@pytest.mark.parametrize("command", [["dlq", "ls"], ["doctor"]], ids=" ".join)
def test_unknown_broker_name_lists_known_names_and_suggests_one(
    command: list[str], settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--config", str(settings), "--broker", "lab:aa"]) == Exit.NOT_FOUND
    said = capsys.readouterr().err
    assert "(prod, lab:a, lab:b/c), got 'lab:aa'" in said
    assert "Did you mean lab:a?" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[auht]", "auht: expected one of auth, limits, retention, "),
        ("[auht]", "got 'auht' (did you mean auth?)"),
        ("[limits]\nburst = 'many'", "limits.burst: expected a whole number"),
        ("[[brokers]]\nurl = 'amqp://x'", "brokers[0].name: expected a value, got none"),
        (
            "[[auth.keys]]\nname = 'a'\nrole = 'boss'\nhash = 'hunter2'",
            "auth.keys[0].role: expected one of viewer, operator, admin",
        ),
        ("[auth", "expected valid TOML: Expected ']'"),
    ],
)
def test_wrong_settings_name_entry_and_known_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    """Values are not shown, because one of them could be a secret."""
    file = tmp_path / "hopback.toml"
    file.write_text(text)
    assert run(["serve", "--config", str(file)]) == Exit.FAILED
    said = capsys.readouterr().err
    assert words in said
    assert "hunter2" not in said


def test_wrong_broker_entry_names_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "hopback.toml"
    file.write_text("[[brokers]]\nname = 'prod'\nuri = 'amqp://x'")
    assert run(["dlq", "ls", "--config", str(file), "--broker", "prod"]) == Exit.FAILED
    said = capsys.readouterr().err
    assert "brokers[0].uri: expected one of name, url, url_env, " in said
    assert "got 'uri' (did you mean url?)" in said


def test_resume_command_names_broker_and_config(settings: Path) -> None:
    said = ["orders.dlq", "--broker", "lab:a", "--config", str(settings)]
    with redrive.make_context("redrive", said):
        again = resume_command("j-1")
    assert again == f"hopback jobs resume j-1 --broker lab:a --config {settings}"


def test_help_of_serve_mentions_no_option_of_other_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["serve", "--help"]) == 0
    described = capsys.readouterr().out
    assert "--broker URL " in described
    assert "--server" not in described
