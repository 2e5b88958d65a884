"""The installed command: exit codes, streams and terminals."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.conftest import Installed


_SYSTEMS = ("file-pipeline", "event-bus", "freeflow", "raffle", "ratatoskr")
_HOSTILE = (
    '[queues."evil\\u001b]0;owned\\u0007"]\npattern = "none"\n'
    'arguments = { x-dead-letter-exchange = "gone" }\n'
)


def _on_a_terminal(installed: Installed, *arguments: str, **environment: str) -> str:
    """The output of the command on a terminal."""
    ours, theirs = pty.openpty()
    ran = subprocess.Popen(
        [str(installed.command), *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **environment},
    )
    os.close(theirs)
    received = b""
    try:
        while chunk := os.read(ours, 65536):
            received += chunk
    except OSError:
        pass  # Linux reports "input/output error" when the other end is closed.
    ran.wait(timeout=60)
    os.close(ours)
    return received.decode()


@pytest.mark.parametrize("system", _SYSTEMS)
@pytest.mark.parametrize("form", ["faithful", "hardened"])
def test_every_design_is_shown_checked_exported_and_drawn(
    installed: Installed, system: str, form: str
) -> None:
    options = ["--hardened"] if form == "hardened" else []
    for command in ("show", "export", "diagram"):
        ran = installed.run("topology", command, system, *options)
        assert (ran.returncode, ran.stderr) == (0, ""), command
        assert ran.stdout
    checked = installed.run("topology", "check", system, "-o", "json", *options)
    findings = json.loads(checked.stdout)["findings"]
    assert checked.returncode == (1 if any(f["severity"] == "error" for f in findings) else 0)


def test_check_fails_where_version_makes_hazard_an_error(installed: Installed) -> None:
    """ratatoskr is safe on 3.10. From 4.0 on the default delivery limit feeds its retry loop."""
    assert (
        installed.run("topology", "check", "ratatoskr", "--broker-version", "3.10").returncode == 0
    )
    checked = installed.run("topology", "check", "ratatoskr", "--broker-version", "4.0")
    assert checked.returncode == 1
    assert "delivery" in checked.stdout


def test_detailed_exit_code_is_10_for_findings(installed: Installed) -> None:
    arguments = ("topology", "check", "--detailed-exit-code", "raffle")
    assert installed.run(*arguments).returncode == 10
    assert installed.run(*arguments, "--hardened").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("topology", "show", "no-such-system"), 5),
        (("systems", "no-such-system"), 5),
        (("topology", "show", "raffle", "--param", "max_retries=many"), 2),
        (("simulate", "raffle", "--queue", "no.such.queue", "--fail", "1"), 5),
        (("simulate", "raffle", "--queue", "raffle_queue", "--fail", "sometimes"), 2),
        (("no-such-command",), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_error_is_text_on_stderr_with_exit_code(
    installed: Installed, arguments: tuple[str, ...], code: int
) -> None:
    ran = installed.run(*arguments)
    assert ran.returncode == code, ran.stderr
    assert ran.stdout == ""
    assert "Error:" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_invalid_file_reports_every_problem(installed: Installed, tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(
        '[queues.orders]\nretry = [{ delay = "soon" }, { delay = "-5s" }]\n[queues.mail]\nretry = "x"\n'
    )
    ran = installed.run("topology", "check", str(path))
    assert ran.returncode == 1
    assert "queues.orders.retry[0].delay" in ran.stderr
    assert "queues.orders.retry[1].delay" in ran.stderr
    assert "queues.mail.retry" in ran.stderr


def test_definitions_round_trip_through_command(installed: Installed, tmp_path: Path) -> None:
    first = installed.run("topology", "export", "freeflow", "-o", "definitions").stdout
    (tmp_path / "freeflow.json").write_text(first)
    again = installed.run(
        "topology", "export", str(tmp_path / "freeflow.json"), "-o", "definitions"
    )
    assert json.loads(again.stdout) == json.loads(first)


def test_topology_file_round_trips_through_command(installed: Installed, tmp_path: Path) -> None:
    text = installed.run("topology", "export", "freeflow", "-o", "toml").stdout
    path = tmp_path / "freeflow.toml"
    path.write_text(text)
    assert installed.run("topology", "export", str(path), "-o", "toml").stdout == text
    shown = installed.run("topology", "show", str(path), "-o", "json").stdout
    original = installed.run("topology", "show", "freeflow", "-o", "json").stdout
    assert json.loads(shown) == json.loads(original)


def test_terminal_output_is_coloured_unless_no_color(installed: Installed) -> None:
    coloured = _on_a_terminal(installed, "topology", "check", "raffle")
    plain = _on_a_terminal(installed, "topology", "check", "raffle", NO_COLOR="1")
    assert "\x1b[" in coloured
    assert "─" in plain
    assert "\x1b[3" not in plain
    assert "\x1b[9" not in plain


def test_piped_output_is_plain_columns(installed: Installed) -> None:
    printed = installed.run("systems").stdout
    assert "\x1b" not in printed
    assert "─" not in printed
    assert printed.startswith("NAME")


@pytest.mark.parametrize("command", ["show", "check", "export", "diagram"])
def test_escape_sequence_in_queue_name_never_reaches_terminal(
    installed: Installed, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "hostile.toml"
    path.write_text(_HOSTILE)
    received = _on_a_terminal(installed, "topology", command, str(path), NO_COLOR="1")
    assert "evil" in received
    assert "\x1b]0;owned" not in received
    assert "\x07" not in received


def test_closed_pipe_ends_command_quietly(installed: Installed) -> None:
    line = f"'{installed.command}' topology export file-pipeline -o definitions | head -n 1"
    ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert ran.stdout == "{\n"
    assert ran.stderr == ""


def test_interrupt_exits_with_130(installed: Installed) -> None:
    ran = subprocess.run(
        [str(installed.python), "-c", _INTERRUPTED], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 130
    assert ran.stderr.strip() == "interrupted"


_INTERRUPTED = """
import signal, sys
from hopback.cli import app
app.root.callback = lambda: signal.raise_signal(signal.SIGINT)
sys.exit(app.run(["systems"]))
"""
