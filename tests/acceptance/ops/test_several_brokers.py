"""One service over two real brokers with three virtual hosts, in a browser, by HTTP and by the command.

`shop` and `billing` are virtual hosts of a RabbitMQ, `lab` is a `hopback broker`.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from hopback.broker.rabbitmq import RabbitMQ
from hopback.message import Message, Properties
from hopback.ops.contract.roles import Grant, Role
from hopback.ops.http.keys import new_key
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from tests.harness.shared import SharedNode

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("page-several-brokers")]

_MAIN, _DLQ = "orders", "orders.dlq"
_DEPTHS = {"shop": 3, "billing": 5, "lab": 7}
_ADA, _ADA_KEPT = new_key("ada", Grant(Role.ADMIN), expires=None, made_by="", now=0.0)
_BOB, _BOB_KEPT = new_key("bob", Grant(Role.OPERATOR), expires=None, made_by="", now=0.0)
_JOB = re.compile(r"/brokers/lab/jobs/j-[0-9a-f]+$")
_TICKS_MS = 20_000  # RabbitMQ counts every 5 s, and the list is read as often


@dataclass(frozen=True, slots=True)
class _Served:
    """The service, its brokers and the command to query it."""

    url: str
    addresses: dict[str, str]
    lab: subprocess.Popen[str]
    folder: Path

    def command(self, *arguments: str, token: str) -> subprocess.CompletedProcess[str]:
        """Run the command against the service."""
        return subprocess.run(
            [sys.executable, "-m", "hopback", *arguments, "--server", self.url],
            env={**os.environ, "HOPBACK_TOKEN": token},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def depth(self, broker: str, queue: str) -> int:
        """How many messages a queue has."""
        # In a thread: the browser's own loop runs in this one.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, _depth(self.addresses[broker], queue)).result()


async def _fill(url: str, count: int) -> None:
    connection = await RabbitMQ(url).connect("fill")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue(_DLQ, type=QueueType.CLASSIC))
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": _DLQ}
    await channel.declare_queue(Queue(_MAIN, type=QueueType.CLASSIC, arguments=arguments))
    for number in range(count):
        await channel.publish(Message("", _DLQ, b"%d" % number, Properties(message_id=f"{number}")))
    await connection.close()


async def _depth(url: str, queue: str) -> int:
    connection = await RabbitMQ(url).connect("count")
    channel = await connection.open_channel()
    found = await channel.declare_queue(Queue(queue), passive=True)
    await connection.close()
    return found.messages


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "hopback", *arguments],
        env={
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "SHOP_PASSWORD": "guest",
            "LAB_PASSWORD": "guest",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _told(process: subprocess.Popen[str], *patterns: str) -> list[str]:
    """Return the output lines that match each pattern."""
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        found = [re.search(pattern, said) for pattern in patterns]
        if all(found):
            return [each[1] for each in found if each is not None]
    raise AssertionError(f"no line of the output matches {patterns}: {said}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Served]:
    """The service over both brokers, each queue filled."""
    from tests.harness.shared import shared_node

    folder, node = tmp_path_factory.mktemp("several"), shared_node()
    with ExitStack() as stack:
        addresses = {}
        for name in ("shop", "billing"):
            vhost = f"several-{name}-{os.getpid()}"
            addresses[name] = node.vhost_url(vhost)
            stack.callback(node.management.delete_vhost, vhost)
        lab = stack.enter_context(_process("broker", "--port", "0", "--http", "0"))
        amqp, http = _told(lab, r"amqp://\S*?:(\d+)", r"http://\S*?:(\d+)")
        addresses["lab"] = f"amqp://guest:guest@127.0.0.1:{amqp}/"
        for name, count in _DEPTHS.items():
            asyncio.run(_fill(addresses[name], count))
        config = folder / "hopback.toml"
        config.write_text(_settings(node, addresses, http))
        service = stack.enter_context(
            _process("serve", "--config", str(config), "--http", "0", "--store", "memory")
        )
        (url,) = _told(service, r"Serving (http://\S+?)/\s")
        yield _Served(url, addresses, lab, folder)


def _settings(node: SharedNode, addresses: dict[str, str], lab_http: str) -> str:
    """The settings file. Passwords stay in the environment."""
    management = urlsplit(node.management_url)
    text = ""
    for name in _DEPTHS:
        parts = urlsplit(addresses[name])
        secret = "LAB_PASSWORD" if name == "lab" else "SHOP_PASSWORD"
        http = lab_http if name == "lab" else str(management.port)
        text += (
            f'[[brokers]]\nname = "{name}"\n'
            f'url = "amqp://guest@127.0.0.1:{parts.port}{parts.path}?password_env={secret}"\n'
            f'management = "http://127.0.0.1:{http}"\n\n'
        )
    for name, kept, role, broker in (
        ("ada", _ADA_KEPT, "admin", "*"),
        ("bob", _BOB_KEPT, "operator", "lab"),
    ):
        text += (
            f'[[auth.keys]]\nname = "{name}"\nhash = "{kept.hash}"\nrole = "{role}"\n'
            f'broker = "{broker}"\n\n'
        )
    return text


@pytest.fixture
def page(served: _Served) -> Iterator[Page]:
    """A page of Debian's Chromium of which every complaint is a failure."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        opened = browser.new_context(base_url=served.url).new_page()
        opened.set_default_timeout(15_000)
        complaints: list[str] = []
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        yield opened
        browser.close()
        assert complaints == []


def _sign_in(page: Page, key: str) -> None:
    page.goto("/")
    page.get_by_label("API key or token").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(r"/$"))


def _picture(page: Page, name: str) -> None:
    folder = os.environ.get("HOPBACK_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"several-{name}.png")


def test_admin_of_all_brokers_redrives_on_one_broker_only(page: Page, served: _Served) -> None:
    """The list has the queues of three virtual hosts."""
    _sign_in(page, _ADA)
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_contain_text("15 dead letters in 3 of 3 queues", timeout=_TICKS_MS)
    rows = page.locator("table.queues tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("lab")
    _picture(page, "list")
    rows.first.get_by_role("link", name=_DLQ).click()
    expect(page.locator("details.switch summary")).to_have_text("lab")
    page.get_by_role("link", name="Re-drive from the head…").click()
    page.get_by_role("button", name="Next: target and pace").click()
    page.get_by_label("Why").fill("the lab is repaired")
    page.get_by_label(re.compile("Ramp")).uncheck()
    page.get_by_role("button", name="Next: review").click()
    expect(page.locator(".warn-box").first).to_contain_text(f"{_MAIN} has 0 consumers")
    _picture(page, "review")
    page.get_by_role("button", name=re.compile(r"^Re-drive \d+ messages")).click()
    page.wait_for_url(_JOB)
    expect(page.locator(".state")).to_have_text("completed", timeout=30_000)
    assert served.depth("lab", _MAIN) == _DEPTHS["lab"]
    assert [served.depth(name, _DLQ) for name in _DEPTHS] == [3, 5, 0]
    page.locator("details.switch summary").click()
    page.locator("details.switch").get_by_role("link", name="billing").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("No running jobs")
    page.goto("/brokers/lab/audit")
    expect(page.get_by_role("cell", name="the lab is repaired").first).to_be_visible()
    page.goto("/audit")
    expect(page.get_by_role("cell", name="the lab is repaired")).to_have_count(0)


def test_operator_of_one_broker_is_refused_at_another(page: Page, served: _Served) -> None:
    """This holds for page, API and command."""
    _sign_in(page, _BOB)
    expect(page.locator("main")).not_to_contain_text("billing")
    for path in (f"/queues/{_DLQ}", f"/brokers/billing/queues/{_DLQ}", "/brokers/shop/topology"):
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed")
    page.goto(f"/brokers/lab/queues/{_DLQ}")
    expect(page.get_by_role("heading", level=1)).to_have_text(_DLQ)
    asked = {"kind": "re-drive", "queue": _DLQ, "reason": "mine?"}
    with httpx.Client(
        base_url=served.url, headers={"Authorization": f"Bearer {_BOB}"}, timeout=30
    ) as client:
        for prefix in ("", "/brokers/shop", "/brokers/billing"):
            assert client.post(f"{prefix}/admin/dlq/jobs", json=asked).status_code == 403
        assert client.get("/brokers/lab/admin/dlq/overview").status_code == 200
    redrive = ("dlq", "redrive", _DLQ, "--yes", "--reason", "mine?", "--broker")
    for name in ("shop", "billing"):
        refused = served.command(*redrive, name, token=_BOB)
        assert refused.returncode != 0
        assert "role" in refused.stderr
        assert served.command("dlq", "ls", "--broker", name, token=_BOB).returncode != 0
    allowed = served.command("dlq", "ls", "--broker", "lab", token=_BOB)
    assert (allowed.returncode, _DLQ in allowed.stdout) == (0, True)
    assert [served.depth(name, _DLQ) for name in ("shop", "billing")] == [3, 5]


def test_killed_broker_does_not_affect_pages_of_others(page: Page, served: _Served) -> None:
    """The list reports it and still shows the others."""
    served.lab.kill()
    served.lab.wait()
    _sign_in(page, _ADA)
    trouble = page.get_by_role("alert").filter(has_text="Broker lab does not answer")
    expect(trouble).to_be_visible(timeout=_TICKS_MS)
    _picture(page, "down")
    rows = page.locator("table.queues tbody tr")
    expect(rows.filter(has_text="billing")).to_have_count(1)
    page.goto(f"/brokers/billing/queues/{_DLQ}")
    expect(page.locator(".lead")).to_contain_text("5 dead letters")
    page.goto(f"/brokers/lab/queues/{_DLQ}")
    expect(page.get_by_role("heading", level=1)).to_have_text("The broker does not answer")
