"""The root of the command: help, errors as words, exit codes."""

from __future__ import annotations

import click
import pytest
from tools.commands import lost, promises

from hopback import __version__
from hopback.cli.app import LazyGroup, root, run


def _groups() -> list[tuple[str, LazyGroup]]:
    assert isinstance(root, LazyGroup)
    found = [("hopback", root)]
    for name in ("topology", "dlq"):
        group = root.get_command(click.Context(root), name)
        assert isinstance(group, LazyGroup)
        found.append((f"hopback {name}", group))
    return found


@pytest.mark.parametrize(("name", "group"), _groups(), ids=str)
def test_help_table_equals_short_help_of_commands(name: str, group: LazyGroup) -> None:
    """The table is shown without loading the commands."""
    assert group.table
    for command_name, lazy in group.table.items():
        assert lazy.load().get_short_help_str(limit=200) == lazy.help, f"{name} {command_name}"


def test_version_option_prints_name_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"hopback {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["topology", "show"],
        ["topology", "show", "raffle", "--format", "poem"],
        ["topology", "check", "raffle", "--broker-version", "rabbit"],
        ["topology", "show", "raffle", "--param", "novalue"],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_with_2_on_stderr(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Error:" in said.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["dlq", "pek", "orders.dlq"], "No such command 'pek'. Did you mean peek?"),
        (["dql", "ls"], "No such command 'dql'. Did you mean dlq?"),
        (["dlq", "xyzzy"], "No such command 'xyzzy'.\n"),
    ],
)
def test_misspelt_command_or_queue_is_answered_with_suggestion(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("command", [["topology", "show"], ["topology", "check"], ["simulate"]])
def test_unknown_target_exits_with_5_and_suggestion(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--queue", "q", "--fail", "1"] if command == ["simulate"] else []
    assert run([*command, "freeflo", *options]) == 5
    said = capsys.readouterr()
    assert "'freeflo'" in said.err
    assert "Did you mean freeflow?" in said.err
    assert "Traceback" not in said.err


@click.command
@click.argument("queue", required=False)
@click.option("-o", "--format", type=click.Choice(["table", "json"]), envvar="FORM")
@click.option("--rate", default=5)
def _before(**_: object) -> None:
    """A command as it was."""


@click.command
@click.argument("queue")
@click.option("--format")
@click.option("--rate", default=7)
def _after(**_: object) -> None:
    """The same command with fewer arguments and options."""


def test_promises_tool_finds_removed_arguments_and_options() -> None:
    """The tool compares the command lines of two commits."""
    assert lost(promises(_before), promises(_before)) == []
    assert lost(promises(_before), promises(_after)) == [
        "hopback [ARGUMENT1]",
        "hopback -o",
        "hopback -o table",
        "hopback -o json",
        "hopback -o by FORM",
        "hopback --format by FORM",
    ]


def test_help_lists_commands_in_order_of_use() -> None:
    commands = root.list_commands(click.Context(root))
    assert commands[:3] == ["init", "run", "publish"]
    assert commands[-2:] == ["demo", "systems"]


_SAMPLES = {
    "accept": "at-most-once looking-deletes",
    "config": __file__,
    "http": "0.0.0.0:8080",
    "queue": "orders invoices",
}


@pytest.mark.parametrize("name", ["run", "serve"])
def test_every_option_is_read_from_environment_as_from_command_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    required = ["shop:app", "--broker=embedded"] if name == "run" else []
    unset = command.make_context(name, list(required)).params
    checked = 0
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        long = option.opts[0].removeprefix("--")
        variable = f"HOPBACK_{long.replace('-', '_').upper()}"
        value = _SAMPLES.get(long, "7")
        if isinstance(option.type, click.Choice):
            value = option.type.choices[-1]
        words = [f"--{long}"] if option.is_flag else [f"--{long}={one}" for one in value.split()]
        by_line = command.make_context(name, [*required, *words]).params
        with monkeypatch.context() as environment:
            environment.setenv(variable, "1" if option.is_flag else value)
            without = [word for word in required if not word.startswith(f"--{long}=")]
            by_environment = command.make_context(name, without).params
        assert by_environment == by_line != unset, long
        assert variable in command.get_help(click.Context(command)), long
        checked += 1
    assert checked > 12
