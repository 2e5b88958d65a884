"""Every selection with every action, in a browser over RabbitMQ: exactly the selected messages are affected.

`make test` tries some cells of the matrix, `make test-pages` all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pytest
import uvicorn
from playwright.sync_api import expect

from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.headers import Failure, failure_json
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import Settings
from hopback.ops.http import create_app
from hopback.ops.operations import Operations
from hopback.topology.model import Queue, QueueType
from tests.acceptance.browsing import open_browser

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from playwright.sync_api import Browser, Page

    from tests.harness.shared import SharedNode

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("page")]

T = TypeVar("T")
_PATIENCE_S = 60
_FEW, _MANY = 40, 1300
"""Fewer messages than a look holds, and more: also more than a review reads without a filter."""
_HELD = 100
"""Messages that a look holds unless another number is entered."""
_PATCH = '[{"op": "add", "path": "/repaired", "value": true}]'
_WANTED = "error:LookupError"

_ACTIONS = ("re-drive", "discard", "export", "edit")
_SELECTIONS = ("whole", "head", "filter", "chosen", "group")


@dataclass(frozen=True, slots=True)
class _Cell:
    action: str
    selection: str
    messages: int
    moves: bool
    """Whether messages arrive and leave before the start."""
    type: QueueType

    def __str__(self) -> str:
        moves = "moving" if self.moves else "quiet"
        return f"{self.action}-{self.selection}-{self.messages}-{moves}-{self.type}"


def _cells() -> list[_Cell]:
    types = (QueueType.CLASSIC, QueueType.QUORUM)
    every = product(_ACTIONS, _SELECTIONS, (_FEW, _MANY), (False, True), types)
    cells = [_Cell(*cell) for cell in every]
    if os.environ.get("HOPBACK_ALL_CELLS"):
        return cells
    # Each action and each selection at least once, where the page went wrong before or most can go wrong.
    some = {
        "re-drive-filter-40-moving-classic",
        "discard-filter-1300-moving-quorum",
        "edit-whole-1300-moving-classic",
        "re-drive-group-1300-quiet-quorum",
        "discard-chosen-40-quiet-classic",
        "export-head-40-quiet-quorum",
    }
    return [cell for cell in cells if str(cell) in some]


class _Service:
    """The admin service over RabbitMQ in a separate thread."""

    def __init__(self, node: SharedNode, vhost: str, exports: Path) -> None:
        self.broker = RabbitMQ(node.url + vhost)
        self.url = ""
        self._node, self._vhost, self._exports = node, vhost, exports
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="service")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(_PATIENCE_S), "the service did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(_PATIENCE_S)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        await _declare(self.broker)
        async with (
            Management(ManagementAddress.derive(None, self._node.management_url)) as view,
            Operations(
                ManagedBroker(self.broker, management=view, vhost=self._vhost),
                settings=Settings(exports=self._exports, editing=True),
            ) as operations,
        ):
            self.operations = operations
            app = create_app(operations, first_read_s=None)
            self._server = uvicorn.Server(
                uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1)
            )
            serving = asyncio.create_task(self._server.serve())
            while not self._server.started:  # noqa: ASYNC110  it offers nothing to wait for
                await asyncio.sleep(0.01)
            port = self._server.servers[0].sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            self._ready.set()
            await serving


@pytest.fixture(scope="module")
def service(rabbitmq: SharedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Service]:
    vhost = f"selection-matrix-{os.getpid()}"  # two processes may share the broker
    rabbitmq.management.create_vhost(vhost)
    with _Service(rabbitmq, vhost, tmp_path_factory.mktemp("exports")) as running:
        yield running
    rabbitmq.management.delete_vhost(vhost)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as launched:
        yield launched


@pytest.fixture
def page(browser: Browser, service: _Service) -> Iterator[Page]:
    context = browser.new_context(base_url=service.url, accept_downloads=True)
    opened = context.new_page()
    opened.set_default_timeout(30_000)
    yield opened
    context.close()


def _message(dlq: str, number: int) -> Message:
    error = "LookupError" if number % 4 == 1 else "KeyError"
    failure = Failure(
        type=error, message="not found", fingerprint=f"{len(error):08x}", frame="", stack="",
        host="", first=1.0, last=2.0, attempts=1,
    )  # fmt: skip
    headers = {"hopback-queue": dlq.removesuffix(".dlq"), "hopback-failure": failure_json(failure)}
    properties = Properties(
        content_type="application/json", delivery_mode=2, message_id=f"m-{number}", headers=headers
    )
    return Message("", dlq, json.dumps({"order": number}).encode(), properties)


async def _publish(broker: RabbitMQ, dlq: str, numbers: range) -> None:
    connection = await broker.connect("producer")
    channel = await connection.open_channel()
    await asyncio.gather(*(channel.publish(_message(dlq, number)) for number in numbers))
    await connection.close()


async def _declare(broker: RabbitMQ) -> None:
    """The queues of all cells: the service reads the list of queues only now and then."""
    connection = await broker.connect("declaring")
    channel = await connection.open_channel()
    for cell in _cells():
        rests = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{cell}.dlq"}
        await channel.declare_queue(Queue(str(cell), arguments=rests))
        await channel.declare_queue(Queue(f"{cell}.dlq", cell.type))
    await connection.close()


async def _take(broker: RabbitMQ, queue: str, most: int) -> list[tuple[int, bool]]:
    """Remove messages as another client does: their numbers, and whether they were repaired."""
    connection = await broker.connect("another client")
    channel = await connection.open_channel()
    found: list[tuple[int, bool]] = []
    while len(found) < most and (delivery := await channel.get(queue)) is not None:
        channel.ack(delivery.tag)
        body = json.loads(delivery.body)
        found.append((body["order"], "repaired" in body))
    await channel.qos(1)
    await connection.close()
    return found


class _Walk:
    """One cell, as a person walks through it."""

    def __init__(self, page: Page, service: _Service, cell: _Cell) -> None:
        self.page, self.service, self.cell = page, service, cell
        self.dlq = f"{cell}.dlq"
        self.left: set[int] = set()
        service.do(_publish(service.broker, self.dlq, range(cell.messages)))

    @property
    def meant(self) -> list[int]:
        """The selected messages."""
        every = range(self.cell.messages)
        match self.cell.selection:
            case "head":
                return list(every)[:25]
            case "chosen":
                return list(every)[:3]
            case "filter" | "group":
                return [number for number in every if number % 4 == 1]
        return list(every)

    def move(self) -> None:
        """Messages leave at the head and arrive at the tail, if this is such a cell."""
        if self.cell.moves:
            taken = self.service.do(_take(self.service.broker, self.dlq, 2))
            self.left |= {number for number, _ in taken}
            begin = self.cell.messages
            self.service.do(_publish(self.service.broker, self.dlq, range(begin, begin + 6)))

    def look(self) -> None:
        self.page.goto(f"/queues/{self.dlq}")
        self.page.get_by_role("button", name="Look at messages").click()
        self.page.wait_for_url(re.compile(r"/sessions/s-"))

    def group(self) -> Any:
        """The row of the group in a look."""
        self.page.get_by_role("link", name="error", exact=True).click()
        return self.page.locator(".groups > li").filter(has_text="LookupError")

    def begin(self) -> None:
        """Open the form of the action with the selection, up to its second step."""
        page, verb = self.page, "Discard" if self.cell.action == "discard" else "Re-drive"
        if self.cell.selection == "chosen":
            self.look()
            for number in range(1, 4):
                page.get_by_label(f"Select message {number}", exact=True).check()
            page.get_by_role("button", name=f"{verb} 3 selected…").click()
        elif self.cell.selection == "group":
            self.look()
            row = self.group()
            if verb == "Discard":
                row.get_by_text("More").click()
            row.get_by_role("link", name=re.compile(f"^{verb}")).click()
        else:
            page.goto(f"/queues/{self.dlq}")
            page.get_by_role("link", name=f"{verb} from the head…").click()
            if self.cell.selection == "head":
                page.get_by_label("At most").fill("25")
            if self.cell.selection == "filter":
                page.get_by_label("Filter").fill(_WANTED)
        page.get_by_role("button", name=re.compile("^Next")).click()

    def run(self) -> None:
        """Start the job from its review and wait for its end."""
        page, action = self.page, self.cell.action
        if action == "discard":
            page.get_by_label("Write each message to a file").uncheck()
        else:
            page.get_by_label("Ramp").uncheck()
        if action == "edit":
            page.locator("summary", has_text="Change each message").click()
            page.locator("#change").fill(_PATCH)
        page.get_by_label("Why").fill("test")
        page.get_by_role("button", name="Next: review").click()
        verb = "Discard" if action == "discard" else "Re-drive"
        number = len(self.meant)
        start = page.get_by_role("button", name=f"{verb} {number:,} message", exact=False)
        expect(start).to_be_visible()
        if self.cell.selection in ("filter", "group"):
            expect(page.locator(".review")).to_contain_text("LookupError")
        self.move()
        if action == "discard":
            page.get_by_label(re.compile("to confirm")).fill(self.dlq)
        start.click()
        page.wait_for_url(re.compile(r"/jobs/j-"))
        expect(page.locator(".state")).to_have_text("completed")

    def export(self) -> list[int]:
        """Download the selection and return the numbers of its messages."""
        page = self.page
        if self.cell.selection in ("chosen", "group"):
            self.look()
        if self.cell.selection == "chosen":
            for number in range(1, 4):
                page.get_by_label(f"Select message {number}", exact=True).check()
            button = page.get_by_role("button", name="Download 3 selected")
        elif self.cell.selection == "group":
            row = self.group()
            row.get_by_text("More").click()
            kind = "link" if self.cell.messages <= _HELD else "button"
            button = row.get_by_role(kind, name=re.compile("^Download"))
        else:
            page.goto(f"/queues/{self.dlq}")
            page.get_by_text("Export and import").click()
            if self.cell.selection == "head":
                page.get_by_label("At most", exact=True).last.fill("25")
            if self.cell.selection == "filter":
                page.get_by_label("Only messages that match").fill(_WANTED)
            button = page.get_by_role("button", name="Download", exact=True)
        with page.expect_download() as download:
            button.click()
        lines = Path(download.value.path()).read_text().splitlines()
        return [json.loads(json.loads(line)["body"])["order"] for line in lines]

    def finish(self) -> None:
        """Release the held messages."""
        operations = self.service.operations
        for view in operations.sessions():
            self.service.do(operations.release(view.id))


@pytest.mark.parametrize("cell", _cells(), ids=str)
def test_action_affects_exactly_the_selected_messages(
    page: Page, service: _Service, cell: _Cell
) -> None:
    walk = _Walk(page, service, cell)
    work = walk.dlq.removesuffix(".dlq")
    every = list(range(cell.messages))
    if cell.action == "export":
        assert sorted(walk.export()) == walk.meant
        gone: set[int] = set()
    else:
        walk.begin()
        walk.run()
        gone = set(walk.meant) - walk.left
    walk.finish()
    arrived = (
        list(range(cell.messages, cell.messages + 6))
        if cell.moves and cell.action != "export"
        else []
    )
    rest = service.do(_take(service.broker, walk.dlq, cell.messages + 100))
    assert sorted(number for number, _ in rest) == [
        number for number in (*every, *arrived) if number not in gone | walk.left
    ]
    sent = service.do(_take(service.broker, work, cell.messages + 100))
    if cell.action in ("re-drive", "edit"):
        assert sorted(sent) == [(number, cell.action == "edit") for number in sorted(gone)]
    else:
        assert sent == []
