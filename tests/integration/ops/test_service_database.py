"""Commands and a second service beside a running `hopback serve` that uses the same database file."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import httpx
import pytest

from hopback import RabbitMQ
from hopback.cli.app import root, run
from hopback.message import Message, Properties
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.shared import SharedNode

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc"),
]

_DLQ = "orders.dlq"
_PATIENCE_S = 30
_SERVE = """
import os, sys
from pathlib import Path

def note(event, arguments):
    if event == "open" and str(arguments[0]).endswith("jobs.db") and not arguments[2] & os.O_EXCL:
        print("OPENED", arguments, file=sys.stderr, flush=True)

sys.addaudithook(note)
from hopback.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


@dataclass(frozen=True)
class _Service:
    process: subprocess.Popen[str]
    address: str
    log: Path

    @property
    def deleted_files(self) -> list[str]:
        return [name for name in _open_files(self.process.pid) if name.endswith("(deleted)")]

    def use_pool(self) -> None:
        """Make concurrent requests, so that the service opens further connections to its database."""
        with httpx.Client() as client, ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(client.get, f"{self.address}admin/audit") for _ in range(24)]
        assert {one.result().status_code for one in asked} == {200}

    def write_audit(self, queue: str) -> None:
        answer = httpx.put(
            f"{self.address}admin/dlq/candidates",
            json={"queue": queue, "answer": "ignore"},
            headers={"X-Hopback-Request": "1"},
        )
        assert answer.status_code == 204, answer.text


def _open_files(pid: int) -> list[str]:
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(descriptor.readlink()))
        except OSError:  # closed meanwhile
            continue
    return found


def _wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def database(
    amqp_url: str, rabbitmq: SharedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The file of the default store. The environment names a broker with ten dead letters."""
    for name in [name for name in os.environ if name.startswith("HOPBACK_")]:
        if name != "HOPBACK_TEST_RUN":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOPBACK_BROKER", amqp_url)
    monkeypatch.setenv("HOPBACK_MANAGEMENT", rabbitmq.management_url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    asyncio.run(_publish_dead_letters(amqp_url))
    return tmp_path / "hopback" / "jobs.db"


async def _publish_dead_letters(url: str) -> None:
    connection = await RabbitMQ(url).connect("test")
    channel = await connection.open_channel()
    for name in ("orders", _DLQ, "early", "late"):
        await channel.declare_queue(Queue(name, QueueType.CLASSIC))
    for number in range(10):
        properties = Properties(message_id=f"m-{number}", delivery_mode=2)
        await channel.publish(Message("", _DLQ, b"{}", properties))
    await connection.close()


@contextmanager
def _run_service(folder: Path, name: str) -> Iterator[_Service]:
    log, settings = folder / f"{name}.log", folder / "admin.toml"
    settings.write_text("[deadletters]\nediting = true\n")
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, "serve", "--http", "0", "--config", str(settings)],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            text=True,
        )
    try:
        _wait_for(lambda: "Serving http" in log.read_text())
        found = re.search(r"Serving (http://\S+)", log.read_text())
        assert found is not None
        yield _Service(process, found.group(1), log)
    finally:
        process.kill()
        process.wait()


def _commands_that_open_the_database() -> set[str]:
    context, found = click.Context(root), {"audit"}
    for group in ("dlq", "jobs", "alerts", "store"):
        commands = root.get_command(context, group)
        assert isinstance(commands, click.Group)
        found |= {f"{group} {name}" for name in commands.list_commands(context)}
    return found


def _arguments(job: str, folder: Path) -> dict[str, tuple[tuple[str, ...], int]]:
    """Arguments and exit code of each command."""
    yes = ("--yes", "--reason", "x")
    archive = str(folder / "archive.ndjson")
    url = f"sqlite:///{folder}/hopback/jobs.db"
    config = folder / "alerts.toml"
    config.write_text(
        '[[alerts.targets]]\nname = "pager"\nkind = "webhook"\nurl = "http://127.0.0.1:1/"\n'
    )
    return {
        "dlq ls": ((), 0),
        "dlq show": ((_DLQ,), 0),
        "dlq groups": ((_DLQ,), 0),
        "dlq peek": ((_DLQ,), 0),
        "dlq get": ((_DLQ, "m-1"), 0),
        "dlq errors": ((), 0),
        "dlq search": (("id:m-1",), 0),
        "dlq export": ((_DLQ,), 0),
        "dlq redrive": ((_DLQ, "--to", "queue:orders", "--limit", "1", *yes), 0),
        "dlq discard": ((_DLQ, "--limit", "1", "--export-to", archive, *yes), 0),
        "dlq import": ((archive, "--dry-run"), 0),
        "dlq edit": ((_DLQ, "m-5", "--content-type", "x/y", "--to", "queue:orders", *yes), 0),
        "dlq restore-limit": ((_DLQ, *yes), 0),
        "dlq watch": (("--times", "1"), 0),
        "dlq notes": ((_DLQ,), 0),
        "dlq history": ((_DLQ,), 0),
        "dlq filters": ((_DLQ,), 0),
        "dlq candidates": ((), 0),
        "dlq add": ((_DLQ,), 0),
        "dlq ignore": ((_DLQ,), 0),
        "dlq forget": ((_DLQ,), 0),
        "jobs came-back": ((job,), 5),
        "jobs cancel": ((job,), 6),
        "jobs failures": ((job,), 0),
        "jobs ls": ((), 0),
        "jobs pause": ((job,), 6),
        "jobs rate": ((job, "10"), 6),
        "jobs resume": ((job,), 6),
        "jobs retry-failures": ((job, "--reason", "x"), 2),
        "jobs show": ((job,), 0),
        "jobs watch": ((job,), 0),
        "alerts ls": ((), 0),
        "alerts test": (("pager", "--config", str(config)), 1),
        "audit": ((), 0),
        "store migrate": (("--database", url), 0),
        "store status": (("--database", url), 0),
        "store relay": (("--database", url), 0),
    }


def test_commands_during_running_service_keep_database_intact(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            [
                "dlq",
                "redrive",
                _DLQ,
                "--to",
                "queue:orders",
                "--limit",
                "1",
                "--yes",
                "--reason",
                "x",
                "-o",
                "json",
            ]
        )
        == 0
    )
    job = json.loads(capsys.readouterr().out)["id"]
    arguments = _arguments(job, tmp_path)
    assert set(arguments) == _commands_that_open_the_database()
    codes: dict[str, int | None] = {}
    with _run_service(tmp_path, "service") as service:
        service.use_pool()
        for command, (options, _) in arguments.items():
            words = [*command.split(), *options]
            codes[command] = _relay(words, database) if command == "store relay" else run(words)
            assert service.deleted_files == [], command
        service.use_pool()
        service.write_audit("late")
        assert _read_by_third_process(database) == "ok late"
        assert "OPENED" not in service.log.read_text()
    assert codes == {command: code for command, (_, code) in arguments.items()}, (
        capsys.readouterr().err
    )


def _relay(words: list[str], database: Path) -> int:
    """Run the relay until it is connected to the broker, then stop it."""
    log = database.with_name("relay.log")
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "hopback", *words], stderr=out)
    try:
        _wait_for(lambda: "the publishing connection is ready" in log.read_text())
        process.send_signal(signal.SIGTERM)
        return process.wait(_PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def _read_by_third_process(database: Path) -> str:
    program = (
        "import sqlite3, sys; file = sqlite3.connect(sys.argv[1]);"
        " print(*file.execute('PRAGMA integrity_check').fetchone(),"
        " *file.execute('SELECT queue FROM hopback_audit ORDER BY number DESC').fetchone())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(database)], capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def test_two_services_on_one_file_see_commits_of_each_other(database: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        services = [stack.enter_context(_run_service(tmp_path, name)) for name in ("one", "two")]
        for service, queue in zip(services, ("early", "late"), strict=True):
            for each in services:
                each.use_pool()
            service.write_audit(queue)
            for each in services:
                assert each.deleted_files == []
                found = httpx.get(f"{each.address}admin/audit").json()
                assert found["items"][0]["queue"] == queue
        services[0].process.terminate()
        services[0].process.wait()
        services[1].write_audit("early")
        assert services[1].deleted_files == []
        assert _read_by_third_process(database) == "ok early"
