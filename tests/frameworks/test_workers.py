"""Workers of Celery and Dramatiq: their dead letters are read, and the tasks run after a re-drive."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from hopback.broker.management import Management, ManagementAddress
from hopback.broker.port import count_now
from hopback.broker.rabbitmq import RabbitMQ
from hopback.broker.server import ClockKind, ServerSettings
from hopback.ops import ManagedBroker, Operations, RedriveRequest, Selection, Who
from hopback.runtime.context import compose
from hopback.testing import BrokerThread
from hopback.topology.model import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from hopback.ops import DeadLetter

_TIMEOUT_S = 60.0  # well above the start time of a worker on a busy machine


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.broker)])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Return the URLs of a broker and its management API."""
    if request.param == "embedded":
        settings = ServerSettings(port=0, http_port=0, clock=ClockKind.SYSTEM)
        with BrokerThread(settings) as broker:
            yield broker.url, broker.http_url
    else:
        node = request.getfixturevalue("rabbitmq")
        url = request.getfixturevalue("amqp_url")
        yield url, node.management_url


pytestmark = pytest.mark.socket
_ON_ONE = pytest.mark.parametrize("place", ["embedded"], indirect=True)
"""For tests that do not depend on the broker."""


@asynccontextmanager
async def _worker(
    url: str, folder: Path, *command: str, repaired: bool = False, **more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a worker with its framework's command. SIGTERM ends it."""
    environment = {
        **os.environ,
        "C_FORCE_ROOT": "1",  # CI runs as root, and Celery refuses pickles as root without it
        "TASKS_BROKER": url,
        "TASKS_LEDGER": str(folder / "ledger.txt"),
        **({"REPAIRED": "1"} if repaired else {}),
        **more,
    }
    with (folder / "worker.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *command, env=environment, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


_CELERY = (
    "celery", "-A", "tests.frameworks.celery_app", "worker",
    "--concurrency=2", "--without-gossip", "--without-mingle", "--loglevel=WARNING",
)  # fmt: skip
_DRAMATIQ = ("dramatiq", "tests.frameworks.dramatiq_app", "--processes=1", "--threads=2")


async def _send(url: str, *calls: str) -> None:
    """Publish from a separate process, as a producer does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "\n".join(calls), env={**os.environ, "TASKS_BROKER": url}
    )
    assert await process.wait() == 0


async def _declare(url: str, *queues: str) -> None:
    connection = await RabbitMQ(url).connect("operator")
    channel = await connection.open_channel()
    for queue in queues:
        await channel.declare_queue(Queue(queue))
    await connection.close()


async def _wait_for_depth(url: str, queue: str, depth: int, folder: Path) -> None:
    connection = await RabbitMQ(url).connect("counting")
    found = None
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            while found != depth:
                await asyncio.sleep(0.1)
                state = await count_now(connection, queue)
                found = None if state is None else state.messages
    except TimeoutError:
        log = (folder / "worker.log").read_text(errors="replace")[-4000:]
        raise AssertionError(f"{queue}: expected {depth}, found {found}\n{log}") from None
    finally:
        await connection.close()


@asynccontextmanager
async def _operations(place: tuple[str, str]) -> AsyncIterator[Operations]:
    broker = RabbitMQ(place[0])
    vhost = place[0].rpartition("/")[2].partition("?")[0]
    vhost = vhost if vhost.startswith("test-") else "/"
    async with (
        Management(ManagementAddress.derive(None, place[1])) as view,
        Operations(ManagedBroker(broker, management=view, vhost=vhost)) as operations,
    ):
        yield operations


async def _read_dead_letters(
    operations: Operations, queue: str
) -> dict[str, tuple[DeadLetter, str]]:
    """Return the dead letters of a queue by type, each with its summary sentence."""
    session = await operations.open_session(queue)
    listed = (await operations.messages(session.id, limit=100)).dead_letters
    found = {
        one.type: (one, (await operations.message(session.id, one.id)).sentence) for one in listed
    }
    await operations.release(session.id)
    return found


async def _redrive(operations: Operations, queue: str, count: int) -> None:
    head = Selection(limit=count)
    request = RedriveRequest(queue=queue, selection=head, expected_count=count, reason="repaired")
    job = await operations.on_behalf_of(Who("test", "test")).start(request)
    job = await operations.wait(job.id)
    assert job.counts.done == count


async def _wait_until_handled(folder: Path, orders: set[int]) -> None:
    ledger = folder / "ledger.txt"

    def handled() -> set[int]:
        return {int(line) for line in ledger.read_text().split()} if ledger.exists() else set()

    try:
        async with asyncio.timeout(_TIMEOUT_S):
            while handled() != orders:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.1)
    except TimeoutError:
        log = (folder / "worker.log").read_text(errors="replace")[-4000:]
        raise AssertionError(f"expected {orders}, found {handled()}\n{log}") from None


async def test_failed_celery_tasks_are_parked_and_run_after_redrive(
    place: tuple[str, str], tmp_path: Path
) -> None:
    """Raised, retried in vain, killed and timed-out tasks are parked with their exceptions."""
    url = place[0]
    await _send(
        url,
        "from tests.frameworks.celery_app import again, charge, deadly, slow",
        "charge.delay(1, currency='EUR')",
        "again.delay(2)",
        "deadly.delay(3)",
        "slow.delay(4)",
    )
    async with _worker(url, tmp_path, *_CELERY):
        await _wait_for_depth(url, "tasks.dlq", 4, tmp_path)
    async with _operations(place) as operations:
        found = await _read_dead_letters(operations, "tasks.dlq")
        errors = {name.rpartition(".")[2]: one.error for name, (one, _) in found.items()}
        assert errors["charge"] == errors["again"] == "ConnectionError"
        assert errors["deadly"].endswith("WorkerLostError")
        assert errors["slow"].endswith("TimeLimitExceeded")
        one, sentence = found["tests.frameworks.celery_app.charge"]
        assert one.error_message == "the bank rejects EUR"
        assert 'Celery task tests.frameworks.celery_app.charge(1, currency="EUR")' in sentence
        assert found["tests.frameworks.celery_app.again"][0].attempts == 3
        async with _worker(url, tmp_path, *_CELERY, repaired=True):
            await _redrive(operations, "tasks.dlq", 4)
            await _wait_until_handled(tmp_path, {1, 2, 3, 4})


async def test_celery_tasks_rejected_to_own_dead_letter_queue_run_after_redrive(
    place: tuple[str, str], tmp_path: Path
) -> None:
    """With every serializer and compression of Kombu."""
    url = place[0]
    worker = (*_CELERY, "--queues=plain")
    await _declare(url, "plain.dead")
    forms = [
        {},
        *({"compression": name} for name in ("zlib", "bzip2", "lzma", "zstd")),
        *({"serializer": name} for name in ("yaml", "msgpack", "pickle")),
        {"serializer": "msgpack", "compression": "zlib"},
    ]
    await _send(
        url,
        "from tests.frameworks.celery_app import reject_order",
        f"for order, form in enumerate({forms!r}):",
        "    reject_order.apply_async((order,), queue='plain', **form)",
    )
    async with _worker(url, tmp_path, *worker):
        await _wait_for_depth(url, "plain.dead", len(forms), tmp_path)
    async with _operations(place) as operations:
        session = await operations.open_session("plain.dead")
        page = await operations.messages(session.id, limit=100)
        views = [await operations.message(session.id, one.id) for one in page.dead_letters]
        await operations.release(session.id)
        assert {(one.dead_letter.reason, one.dead_letter.origin) for one in views} == {
            ("rejected", "plain")
        }
        calls = {one.sentence.partition("celery_app.")[2] for one in views}
        pickle_index = next(place for place, form in enumerate(forms) if "pickle" in form.values())
        assert calls == {
            f"reject_order({order})." for order in range(len(forms)) if order != pickle_index
        } | {
            f"reject_order(({pickle_index},) (as its producer showed them: a pickle is not loaded))."
        }
        async with _worker(url, tmp_path, *worker, repaired=True):
            await _redrive(operations, "plain.dead", len(forms))
            await _wait_until_handled(tmp_path, set(range(len(forms))))


@_ON_ONE
async def test_celery_worker_with_early_acks_exits_at_start(
    place: tuple[str, str], tmp_path: Path
) -> None:
    """The log names the tasks and the required setting. The worker consumes no message."""
    url = place[0]
    async with _worker(url, tmp_path, *_CELERY, TASKS_EARLY="1") as process:
        async with asyncio.timeout(_TIMEOUT_S):
            assert await process.wait() != 0
    log = (tmp_path / "worker.log").read_text()
    assert "are acked before they run" in log
    assert "Set `task_acks_late = True`" in log


async def test_dead_dramatiq_messages_run_after_redrive(
    place: tuple[str, str], tmp_path: Path
) -> None:
    """Actor, arguments and exception come from the body of the message in `default.XQ`."""
    url = place[0]
    async with _worker(url, tmp_path, *_DRAMATIQ):
        await _send(url, "from tests.frameworks.dramatiq_app import charge", "charge.send(9)")
        await _wait_for_depth(url, "default.XQ", 1, tmp_path)
    async with _operations(place) as operations:
        one, sentence = (await _read_dead_letters(operations, "default.XQ"))["charge"]
        assert (one.error, one.error_message) == (
            "ConnectionError",
            "the bank rejects EUR",
        )
        assert (one.recorded_by, one.attempts, one.origin) == ("Dramatiq", 2, "default")
        assert "Dramatiq task charge(9)" in sentence
        async with _worker(url, tmp_path, *_DRAMATIQ, repaired=True):
            await _redrive(operations, "default.XQ", 1)
            await _wait_until_handled(tmp_path, {9})


@_ON_ONE
async def test_kombu_pickle_is_shown_and_not_loaded(place: tuple[str, str]) -> None:
    """The page shows its content type. The body stays bytes."""
    url = place[0]
    await _declare(url, "kombu", "kombu.dlq")
    connection = await RabbitMQ(url).connect("producer")
    channel = await connection.open_channel()
    body = b"cposix\nsystem\n(S'touch /tmp/loaded-a-pickle'\ntR."
    message = compose("kombu.dlq", body, content_type="application/x-python-serialize")
    await channel.publish(message)
    await connection.close()
    async with _operations(place) as operations:
        session = await operations.open_session("kombu.dlq")
        one = (await operations.messages(session.id)).dead_letters[0]
        view = await operations.message(session.id, one.id)
        assert view.payload_encoding in ("string", "binary")
        assert view.properties["contentType"] == "application/x-python-serialize"
        await operations.release(session.id)
