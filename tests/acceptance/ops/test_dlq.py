"""`hopback dlq` and `hopback jobs` as an operator meets them: processes, a terminal, a real RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from hopback import RabbitMQ
from hopback.broker.declare import declare
from hopback.designs import DESIGNS
from hopback.fields import Timestamp
from hopback.headers.names import FAILURE, QUEUE
from hopback.message import Message, Properties

if TYPE_CHECKING:
    from pathlib import Path

    from hopback.fields import FieldValue
    from hopback.message import Delivery
    from tests.acceptance.conftest import Installed
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_TOPOLOGY = DESIGNS["raffle"].build({}, hardened=False)
_MAIN = _TOPOLOGY.plans[0].queue
_DLQ = _TOPOLOGY.plans[0].parking.queue
_PATIENCE_S = 40.0


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator with the installed command, a broker and a job store."""

    installed: Installed
    url: str
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command without a terminal."""
        return subprocess.run(
            [str(self.installed.command), *arguments],
            cwd=self.installed.wheel.parent,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def answer_prompts(self, *arguments: str, answers: tuple[str, ...]) -> tuple[int, str]:
        """Run the command on a terminal and type the answers when it asks: code and screen."""
        with self.at_terminal(*arguments) as seat:
            for answer in answers:
                seat.until(lambda: re.search(r"(\]|Reason|messages?): $", seat.screen))
                seat.type(answer + "\n")
            return seat.end()

    def at_terminal(self, *arguments: str) -> Seat:
        """Begin the command on a terminal."""
        return Seat([str(self.installed.command), *arguments], {**os.environ, **self.environment})


class Seat:
    """A process with a terminal."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.screen = ""
        self._process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm-256color", "COLUMNS": "120"},
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)

    def until(self, condition: Any) -> None:
        """Read the screen until it shows the pattern."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(self.screen)
            self._read()
            time.sleep(0.02)

    def _read(self) -> bool:
        """Read pending output and return whether more may come."""
        try:
            chunk = os.read(self._ours, 65536)
        except BlockingIOError:
            return True
        except OSError:
            return False  # the other end is closed
        self.screen += chunk.decode(errors="replace").replace("\r\n", "\n")
        return bool(chunk)

    def type(self, text: str) -> None:
        """Type it."""
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Wait for the end: the exit code and everything that was on the screen."""
        self.until(lambda: self._process.poll() is not None)
        while self._read() and self.screen and self._process.poll() is None:
            pass
        return self._process.returncode, self.screen


@pytest.fixture
def operator(installed: Installed, rabbitmq: SharedNode, amqp_url: str, tmp_path: Path) -> Operator:
    """An operator of a virtual host with the raffle's queues."""
    _do(amqp_url, _declare)
    return Operator(
        installed,
        amqp_url,
        {
            "HOPBACK_BROKER": amqp_url,
            "HOPBACK_MANAGEMENT": rabbitmq.management_url,
            "HOPBACK_STORE": f"sqlite:///{tmp_path / 'jobs.db'}",
            "XDG_STATE_HOME": str(tmp_path),
        },
    )


def _do(url: str, work: Any) -> Any:
    """Do something with a connection."""

    async def run_step() -> Any:
        connection = await RabbitMQ(url).connect("test")
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run_step())


async def _declare(connection: Any) -> None:
    await declare(connection, _TOPOLOGY)


def _park(url: str, count: int, queue: str = _DLQ) -> None:
    """Put dead letters into a queue: texts and bytes, headers of several types."""

    async def park(connection: Any) -> None:
        channel = await connection.open_channel()
        fates = []
        for number in range(count):
            await channel.room()
            fates.append(channel.publish(_dead_letter(number, queue)))
        await asyncio.gather(*fates)

    _do(url, park)


def _dead_letter(number: int, queue: str) -> Message:
    record = {
        "type": "TimeoutError" if number % 3 else "shop.OutOfStock",
        "message": "\x1b[2J\x07no answer",
        "fingerprint": "aaaa1111" if number % 3 else "bbbb2222",
        "last": "2026-01-01T10:00:00.000Z",
        "attempts": 4,
    }
    headers: dict[str, FieldValue] = {
        FAILURE: json.dumps(record),
        QUEUE: _MAIN,
        "when": Timestamp(5),
        "part": 0.1,
    }
    body = bytes(range(256)) if number % 2 else b'{"number": %d}' % number
    properties = Properties(
        message_id=f"m-{number}", headers=headers, delivery_mode=2, priority=number % 5
    )
    return Message("", queue, body, properties)


def _taken(url: str, queue: str) -> list[Delivery]:
    """All ready messages of a queue, which stay there."""

    async def take(connection: Any) -> list[Delivery]:
        channel = await connection.open_channel()
        found = []
        while (delivery := await channel.get(queue)) is not None:
            found.append(delivery)
        return found

    taken: list[Delivery] = _do(url, take)
    return taken


def _lines(ran: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_count_and_peek_leave_queue_unchanged(operator: Operator) -> None:
    """No control character reaches the terminal."""
    _park(operator.url, 7)
    groups = _lines(operator.run("dlq", "groups", _DLQ))
    assert [(one["key"], one["count"]) for one in groups] == [("aaaa1111", 4), ("bbbb2222", 3)]
    code, screen = operator.answer_prompts("dlq", "peek", _DLQ, "--limit", "5", answers=())
    assert code == 0
    assert "TimeoutError" in screen
    assert "\x1b[2J" not in screen
    assert "\x07" not in screen
    left = _taken(operator.url, _DLQ)
    assert [one.properties.message_id for one in left] == [f"m-{n}" for n in range(7)]


def test_redrive_asks_for_confirmation_and_reason(operator: Operator) -> None:
    """The plan is shown first. Then the messages are in the queue that failed."""
    _park(operator.url, 9)
    act = ("dlq", "redrive", _DLQ, "--to", "failed-queue", "--filter", "group:aaaa1111")
    code, screen = operator.answer_prompts(*act, answers=("n",))
    assert code == 8
    assert "6 of 9 match the filter" in screen
    assert f"queue {_MAIN}: 6, exists and routes" in screen
    code, screen = operator.answer_prompts(*act, answers=("y", "the cause is repaired"))
    assert code == 0, screen
    assert "6 messages re-driven" in screen
    assert len(_taken(operator.url, _MAIN)) == 6
    assert [one.properties.message_id for one in _taken(operator.url, _DLQ)] == [
        "m-0",
        "m-3",
        "m-6",
    ]
    (job,) = _lines(operator.run("jobs", "ls"))
    assert (job["reason"], job["counts"]["done"]) == ("the cause is repaired", 6)


def test_ctrl_c_pauses_job_and_printed_command_resumes_it(operator: Operator) -> None:
    """Messages in flight are completed first."""
    _park(operator.url, 120)
    act = ("dlq", "redrive", _DLQ, "--to", "failed-queue", "--yes", "--reason", "x", "--rate", "60")
    with operator.at_terminal(*act) as seat:
        seat.until(lambda: re.search(r"\s([1-9]\d*)/120", seat.screen))
        seat.interrupt()
        code, screen = seat.end()
    assert code == 130, screen
    found = re.search(r"hopback (jobs resume (j-\w+))", screen)
    assert found is not None, screen
    moved = len(_taken(operator.url, _MAIN))
    assert 0 < moved < 120
    assert len(_taken(operator.url, _DLQ)) == 120 - moved
    (resumed,) = _lines(operator.run(*found[1].split()))
    assert resumed["state"] == "completed"
    ids = [one.properties.message_id for one in _taken(operator.url, _MAIN)]
    assert ids == [f"m-{n}" for n in range(120)]


def test_job_is_paused_and_cancelled_from_another_process(operator: Operator) -> None:
    """The requests go through the store. The job's process prints the final state."""
    _park(operator.url, 50)
    act = ("dlq", "redrive", _DLQ, "--to", "failed-queue", "--yes", "--reason", "x", "--rate", "2")
    with operator.at_terminal(*act) as seat:
        seat.until(lambda: "/50" in seat.screen)
        (job,) = _lines(operator.run("jobs", "ls", "--active"))
        assert operator.run(*act).returncode == 6  # one active job for each queue
        assert operator.run("jobs", "pause", job["id"]).returncode == 0
        seat.until(lambda: "paused" in seat.screen)
        assert operator.run("jobs", "cancel", job["id"]).returncode == 0
        code, screen = seat.end()
    assert code == 8, screen
    assert len(_taken(operator.url, _MAIN)) + len(_taken(operator.url, _DLQ)) == 50


def test_discard_requires_queue_name_and_import_restores_messages(
    operator: Operator, tmp_path: Path
) -> None:
    _park(operator.url, 6)
    before = _taken(operator.url, _DLQ)
    file = str(tmp_path / "gone.ndjson")
    act = ("dlq", "discard", _DLQ, "--reason", "junk", "--export-to", file)
    assert operator.answer_prompts(*act, answers=("yes",))[0] == 8
    code, screen = operator.answer_prompts(*act, answers=(_DLQ,))
    assert code == 0, screen
    assert _taken(operator.url, _DLQ) == []
    exported = operator.run("dlq", "import", file, "--yes")
    assert exported.returncode == 0, exported.stderr
    after = _taken(operator.url, _DLQ)
    assert [(one.body, _kept(one)) for one in after] == [(one.body, _kept(one)) for one in before]


def _kept(delivery: Delivery) -> tuple[object, ...]:
    properties = delivery.properties
    headers = {name: (type(value), value) for name, value in properties.headers.items()}
    return properties.message_id, properties.priority, properties.delivery_mode, headers
