"""Hostile content must not reveal secrets, forge log lines, leave its folder or change the target
of a request.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from hopback import App, Park, RabbitMQ
from hopback.broker import EmbeddedBroker
from hopback.clock import ManualClock
from hopback.errors import ConnectionFailed, InvalidDeclaration
from hopback.message import Message, Properties
from hopback.observe.events import Bus
from hopback.observe.logs import JsonLog, TextLog
from hopback.ops.brokers.discovery import Override
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import DiscardRequest, Selection, Settings
from hopback.ops.operations import Operations
from hopback.runtime.payload import Undecodable, decoder_for
from hopback.runtime.push import PushTarget
from hopback.store import DatabaseUrlError, open_database
from hopback.testing import AppTest, in_virtual_time
from hopback.topology.model import Queue
from hopback.wire.url import parse_url
from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CANARY = "C4N4RY-secret"
_NOWHERE = f"amqp://shop:{CANARY}@127.0.0.1:1/shop"
_HOSTILE = '\x1b[2J\x1b]0;owned\x07\r\n{"event":"forged"}\u2028\u202eevil\x00../../etc/passwd'


# --- secrets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("doctor",),
        ("topology", "plan", "raffle"),
        ("topology", "apply", "raffle", "--yes"),
        ("dlq", "list"),
        ("jobs", "list"),
        ("store", "relay"),
        ("run", "shop:app"),
    ],
    ids=" ".join,
)
def test_no_command_prints_password(command: tuple[str, ...], tmp_path: Path) -> None:
    """The broker cannot be reached, and asyncio runs in debug mode."""
    (tmp_path / "shop.py").write_text("import hopback\napp = hopback.App('shop')\n")
    environment = {
        **os.environ,
        "HOPBACK_BROKER": _NOWHERE,
        "HOPBACK_DATABASE": f"postgresql://shop:{CANARY}@127.0.0.1:1/shop",
        "HOPBACK_MANAGEMENT": f"http://shop:{CANARY}@127.0.0.1:1",
        "PYTHONASYNCIODEBUG": "1",
    }
    said = _said_by([sys.executable, "-m", "hopback", *command], tmp_path, environment)
    assert CANARY.encode() not in said
    assert said


def _said_by(command: list[str], folder: Path, environment: dict[str, str]) -> bytes:
    """Run a command and return its output.

    If the command waits for the broker, it is killed shortly after its first output.
    """
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    for _ in range(300):
        if (folder / "out").stat().st_size or process.poll() is not None:
            break
        time.sleep(0.1)
    try:
        process.wait(1.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return (folder / "out").read_bytes()


async def test_no_object_or_error_shows_password() -> None:
    """This includes the broker, its URL, its errors and the database."""
    broker = RabbitMQ(_NOWHERE)
    with pytest.raises(ConnectionFailed) as caught:
        await broker.connect()
    engine = open_database(f"postgresql://shop:{CANARY}@127.0.0.1:1/shop")
    shown = [repr(broker), broker.address, str(caught.value), repr(caught.value), repr(engine)]
    shown += [repr(parse_url(_NOWHERE)), str(parse_url(_NOWHERE)), repr(engine.url)]
    for wrong in (f"mysql://shop:{CANARY}@h/d", f"amqp://{CANARY}"):
        with pytest.raises(DatabaseUrlError) as refused:
            open_database(wrong)
        shown.append(str(refused.value))
    for wrong in (f"http://u:{CANARY}@h", f"amqp://u:{CANARY}@h:port", f"amqp://u:{CANARY}@h/?x=1"):
        with pytest.raises(ValueError, match="broker URL") as mistaken:
            parse_url(wrong)
        shown.append(str(mistaken.value))
    assert [text for text in shown if CANARY in text] == []


def test_amqps_verifies_certificate_by_default() -> None:
    """An `amqp://` URL does not use TLS."""
    tls = parse_url("amqps://h/").tls
    assert tls is not None
    assert tls.verify
    assert parse_url("amqp://h/").tls is None


# --- lines and terminals ---------------------------------------------------------------------------


@in_virtual_time
async def test_no_message_can_forge_a_log_line() -> None:
    """Hostile ids, types and reasons are passed through the whole runtime."""
    lines, screen = io.StringIO(), io.StringIO()
    clock = ManualClock()
    app = App("shop")

    @app.handler("orders", retry=["1s"])
    async def handle() -> Park:
        return Park(_HOSTILE)

    async with AppTest(app) as test:
        bus = Bus(JsonLog(clock, stream=lines), TextLog(clock, stream=screen))
        await test.publish("orders", b"{}", message_id=_HOSTILE[:80], message_type=_HOSTILE[:80])
        await test.drain()
        for happened in test.events:
            bus.emit(happened.name, happened.fields)
    told = lines.getvalue().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in told)
    assert not any(json.loads(line)["event"] == "forged" for line in told)
    assert "\x1b" not in lines.getvalue() + screen.getvalue()
    assert "\u202e" not in screen.getvalue()
    assert screen.getvalue().count("\n") == len(told)


# --- files -----------------------------------------------------------------------------------------


@in_virtual_time
async def test_hostile_names_cannot_move_export_out_of_its_folder(tmp_path: Path) -> None:
    """The discard writes a single file with a generated name."""
    folder = tmp_path / "in" / "exports"
    folder.mkdir(parents=True)
    queue = "../../outside/evil.dlq"
    broker = EmbeddedBroker()
    await _fill(broker, queue)
    async with Operations(
        ManagedBroker(broker, overrides=[Override(queue)]), settings=Settings(exports=folder)
    ) as operations:
        request = DiscardRequest(
            queue=queue, selection=Selection(), reason="t", confirm=queue, force=True
        )
        job = await operations.wait((await operations.start(request)).id)
    assert job.counts.done == 2
    written = [path for path in _below(tmp_path) if path.is_file()]
    assert [path.parent for path in written] == [folder]
    assert re.fullmatch(r"[\w-]+\.ndjson", written[0].name)
    assert written[0].stat().st_mode & 0o077 == 0


def _below(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


async def _fill(broker: EmbeddedBroker, queue: str) -> None:
    connection = await broker.connect()
    channel = await connection.open_channel()
    await channel.declare_queue(Queue(queue))
    for number in range(2):
        properties = Properties(message_id=f"../../{number}", headers={"../../x": "../../y"})
        await channel.publish(Message("", queue, b"{}", properties))
    await connection.close()


@in_virtual_time
async def test_import_line_cannot_write_file() -> None:
    """The names in a line are names of queues. If the queue does not exist, the line is refused."""
    broker = EmbeddedBroker()
    await _fill(broker, "shop.dlq")
    async with Operations(ManagedBroker(broker)) as operations:
        hostile = json.dumps(
            {"v": 1, "queue": "../../etc/passwd", "exchange": "file:///etc", "routing_key": "x",
             "body": "x", "properties": {}}
        )  # fmt: skip

        async def lines() -> AsyncIterator[bytes]:
            yield hostile.encode()

        imported = await operations.import_lines(lines())
    assert imported.published == 0
    assert imported.problem
    assert [queue.name for queue in broker.snapshot().queues] == ["shop.dlq"]


# --- targets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "gopher://host/",
        "ftp://host/",
        "http://user:secret@host/",
        "http://host@169.254.169.254/",
        "http://host/a b",
        "http://host/\r\nX: y",
        "//host/path",
        "",
    ],
)
def test_push_target_must_be_plain_http_url(url: str) -> None:
    """URLs with credentials, spaces or line breaks are refused."""
    with pytest.raises(InvalidDeclaration, match="without credentials"):
        PushTarget(url)


async def test_message_cannot_choose_push_target() -> None:
    """All fields of the message contain a URL.

    The request is still sent to the configured host and path.
    """
    requests: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).decode("latin1"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    app = App("shop")
    app.queue("events", retry=["1s"])
    app.push("events", f"http://127.0.0.1:{port}/configured", timeout=5)
    elsewhere = "http://169.254.169.254/latest/meta-data"
    headers: dict[str, Any] = dict.fromkeys(
        ("url", "host", "location", "x-forwarded-host", "x-target"), elsewhere
    )
    async with AppTest(app) as test:
        await test.publish(
            "events", {"url": elsewhere, "callback": elsewhere}, headers=headers,
            message_id="1", message_type=elsewhere,
        )  # fmt: skip
        await test.drain()
    server.close()
    (request,) = requests
    assert request.startswith("POST /configured HTTP/1.1\r\n")
    assert f"host: 127.0.0.1:{port}\r\n" in request.lower()
    assert "x-target" not in request.lower()
    assert "x-forwarded-host" not in request.lower()


# --- the code --------------------------------------------------------------------------------------


def test_every_waived_security_rule_has_a_reason() -> None:
    waived = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"noqa: S\d+", line) and not re.search(r"noqa: S\d+\s*[-#]\s*\w+", line)
    ]
    assert waived == []


def test_source_never_unpickles_or_evaluates() -> None:
    risky = re.compile(
        r"^\s*(import|from)\s+(pickle|marshal|shelve|yaml)\b|(?<![\w.])(eval|exec)\(|shell=True"
    )
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if risky.search(line)
    ]
    # The dead-letter operations read YAML arguments of tasks. They only use the events of the
    # parser, so no objects are constructed.
    assert [line.partition("#")[0].strip() for line in found] == [
        "src/hopback/ops/messages/body.py: import yaml"
    ]
    body = (ROOT / "src/hopback/ops/messages/body.py").read_text(encoding="utf-8")
    assert set(re.findall(r"yaml\.[a-z_]\w*", body)) == {"yaml.parse"}
    assert risky.search("import pickle")
    assert risky.search("x = eval(text)")


def test_compression_bomb_is_not_decompressed() -> None:
    """The body is not JSON and is refused without decompression."""
    bomb = gzip.compress(b"0" * 10_000_000)
    with pytest.raises(Undecodable):
        decoder_for(dict)(bomb)
