"""A night on call from the first look to the last order, on page, command and HTTP, on a real RabbitMQ."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import pytest
from playwright.sync_api import expect

from tests.acceptance.browsing import accessible, open_browser
from tests.acceptance.incident import OTHERS, Incident

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page, ViewportSize

    from tests.harness.shared import SharedNode


_ORDERS = 40
_WIDE: ViewportSize = {"width": 1440, "height": 900}
_PHONE: ViewportSize = {"width": 390, "height": 844}


class _Service:
    """`hopback serve` as a process that can be killed and started again at the same address."""

    def __init__(self, folder: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "hopback", "serve", "--http", str(self._port),
                "--store", f"sqlite:///{self._folder}/jobs.db", *self._options,
            ],
            env={**os.environ, "XDG_STATE_HOME": str(self._folder), "PYTHONUNBUFFERED": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.startswith("Serving"):
                return
        raise AssertionError("the service did not come up")

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def get(self, path: str) -> Any:
        """Return the JSON response of the HTTP API."""
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return json.load(answer)

    def command(self, *arguments: str, form: str = "table") -> str:
        """Run the command against this service and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "hopback", *arguments, "--server", self.url, "-o", form],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the night."""
    with open_browser() as launched:
        yield launched


@pytest.mark.waits(60)
def test_incident_is_found_redriven_and_survives_crash(
    browser: Browser, rabbitmq: SharedNode, amqp_url: str, tmp_path: Path
) -> None:
    """The errors are shown, a ramped re-drive stops in time, a crash is reported, and the remaining
    messages return.
    """
    management = rabbitmq.management_url
    with (
        Incident(amqp_url, orders=_ORDERS) as incident,
        _Service(tmp_path, "--broker", amqp_url, "--management", management) as service,
    ):
        context = browser.new_context(viewport=_WIDE, base_url=service.url)
        page = context.new_page()
        page.set_default_timeout(20_000)
        _see_everything_at_once(page)
        _find_out_what_broke(page, service)
        _compare_numbers(page, service, incident)
        _find_one_order(page, service)
        _tell_causes_apart(page, service)
        job = _redrive_too_early(page, service)
        _survive_a_crash(page, service)
        incident.repaired.set()
        page.goto(f"/jobs/{job}")
        page.get_by_role("button", name=re.compile("Resume")).click()
        expect(page.locator(".state")).to_have_text("completed", timeout=60_000)
        assert service.get(f"/admin/dlq/jobs/{job}")["counts"]["remaining"] == 0
        assert set(range(1, _ORDERS)) <= {*incident.handled}
        assert "job.resume" in service.command("audit", "--job", job)
        context.close()


def _see_everything_at_once(page: Page) -> None:
    """See twelve queues on one screen, fullest first.

    Unknown queues are offered and then listed.
    """
    page.goto("/")
    page.get_by_role("button", name="Dismiss").click()
    rows = page.locator("table.queues tbody tr")
    expect(rows.first).to_contain_text("orders.dlq")
    twelfth = rows.nth(11).bounding_box()
    assert twelfth is not None
    assert twelfth["y"] + twelfth["height"] <= _WIDE["height"]
    answers = page.get_by_role("button", name="Yes, list it: celery.dead")
    for _ in range(40):  # RabbitMQ counts every 5 s, and the page data is up to 10 s old
        if answers.count():
            break
        page.wait_for_timeout(500)
        page.reload()
    answers.click()
    expect(page.locator("table.queues")).to_contain_text("celery.dead")
    expect(page.get_by_role("heading", level=1)).to_contain_text(
        f"{_ORDERS + sum(OTHERS.values())} dead letters in {1 + len(OTHERS)} of", timeout=15_000
    )
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        accessible(page)
    page.set_viewport_size(_PHONE)
    for word in ("Dead letters", "Jobs", "Topology", "Checks", "Audit", "You"):
        expect(page.get_by_role("link", name=word, exact=True).first).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth") <= _PHONE["width"]
    page.set_viewport_size(_WIDE)
    page.emulate_media(color_scheme="light")


def _find_out_what_broke(page: Page, service: _Service) -> None:
    """One click: the errors of all queues on the first page, by HTTP and by the command."""
    page.goto("/")
    page.get_by_role("button", name="Survey queues").click()
    broke = page.locator(".broke li")
    expect(broke.first).to_contain_text("orders.dlq", timeout=30_000)
    expect(page.get_by_role("button", name="Survey again")).to_be_visible(timeout=30_000)
    expect(page.locator("table.queues")).to_contain_text("OutOfStockException")
    expect(page.locator("table.queues")).to_contain_text("not surveyed")  # ledger.dlq
    accessible(page)
    causes = {one["error"] for one in service.get("/admin/dlq/errors")["items"]}
    assert {
        "shop.OutOfStockException",
        "org.postgresql.util.PSQLException",
        "Shop.Shipping.CarrierUnavailableException",
        "System.Data.SqlClient.SqlException",
        "asyncpg.TooManyConnectionsError",
        "ConnectionError",
        "Net::SMTPServerBusy",
        "AxiosError",
        "CardRefused",
    } <= causes
    assert "CarrierUnavailableException" in service.command("dlq", "errors")
    broke.filter(has_text="CarrierUnavailableException").get_by_role("link").first.click()
    rows = page.locator("table.rows tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.get_by_role("link").first).to_have_text("shipping_error")
    expect(rows.locator(".num")).to_have_text(str(OTHERS["shipping_error"]))
    accessible(page)
    rows.get_by_role("link", name="Find messages").click()
    expect(page.locator("[data-status]")).to_contain_text(f"{OTHERS['shipping_error']} found.")


def _compare_numbers(page: Page, service: _Service, incident: Incident) -> None:
    """Every count of page, command and survey is the broker's."""
    broker = incident.depths()
    assert broker == {"orders.dlq": _ORDERS, **OTHERS}
    page.goto("/")
    expect(page.get_by_role("heading", level=1)).to_contain_text(
        f"{sum(broker.values())} dead letters in {len(broker)} of"
    )
    rows = page.locator("table.queues tbody tr").all()
    shown = {
        row.locator("th a").inner_text(): int(row.locator("td.big").inner_text()) for row in rows
    }
    assert shown == broker
    listed = json.loads(service.command("dlq", "ls", form="json"))
    depths = {one["queue"]: one["depth"]["messages"] for one in listed}
    assert {queue: count for queue, count in depths.items() if count} == broker
    found = json.loads(service.command("dlq", "errors", form="json"))["items"]
    surveyed = Counter[str]()
    for one in found:
        assert one["count"] == sum(at["count"] for at in one["queues"])
        surveyed.update({at["queue"]: at["count"] for at in one["queues"]})
    assert surveyed == {queue: n for queue, n in broker.items() if queue != "ledger.dlq"}
    page.goto("/errors")
    expect(page.get_by_role("heading", level=1)).to_contain_text(
        re.compile(rf"{len(found)} errors\s*in {surveyed.total()} messages")
    )
    counts = page.locator("table.rows tbody td.num").all_inner_texts()
    assert sorted(map(int, counts)) == sorted(one["count"] for one in found)
    accessible(page)


def _find_one_order(page: Page, service: _Service) -> None:
    """Search one order in all queues, also in compressed bodies, and open the result."""
    page.goto("/")
    page.get_by_label("Search all queues").fill("C-00007")
    page.keyboard.press("Enter")
    expect(page.locator("[data-status]")).to_contain_text("1 found.", timeout=30_000)
    expect(page.locator("[data-skipped]")).to_contain_text("ledger.dlq was skipped")
    accessible(page)
    page.get_by_role("button", name="Open").click()
    page.wait_for_url(re.compile("/sessions/"))
    page.locator("table.letters tbody th a").first.click()
    expect(page.locator(".story")).to_contain_text(
        "after 3 attempts"
    )  # one, and two by the retry queue
    expect(page.locator("pre.payload")).to_contain_text("C-00007")
    page.go_back()
    page.get_by_role("button", name="Release").click()
    page.goto("/search?find=C-99999")
    expect(page.get_by_role("heading", name="No matches")).to_be_visible(timeout=30_000)
    packed = service.command("dlq", "search", "D-77")
    assert f"{OTHERS['documents.dlq']} of" in packed
    assert "documents.dlq" in packed


def _tell_causes_apart(page: Page, service: _Service) -> None:
    """Distinguish causes behind Spring's wrapper and by a custom header.

    Stack traces and emoji are shown whole.
    """
    page.goto("/queues/inventory.dlq")
    page.get_by_role("button", name="Look at messages").click()
    expect(page.locator(".groups > li")).to_have_count(2)
    expect(page.locator(".groups")).to_contain_text("OutOfStockException")
    page.locator("table.letters tbody th a").first.click()
    expect(page.locator("pre.trace")).to_contain_text("Caused by: shop.OutOfStockException")
    accessible(page)
    page.go_back()
    page.get_by_role("button", name="Release").click()
    page.goto("/queues/users.dlq")
    page.get_by_role("button", name="Look at messages").click()
    page.locator("table.letters tbody th a").first.click()
    expect(page.locator("pre.payload")).to_contain_text("\U0001f469\u200d\U0001f680")
    expect(page.locator("pre.payload")).to_contain_text("⟨U+202E⟩")
    listed = service.command("dlq", "ls")
    assert listed.splitlines()[1].split()[0] == "orders.dlq"
    assert f"in {1 + len(OTHERS)} of" in listed.splitlines()[-1]
    assert "OutOfStockException" in service.command("dlq", "groups", "inventory.dlq")


def _redrive_too_early(page: Page, service: _Service) -> str:
    """Re-drive all matches with a ramp.

    The first message returns, and the job reports and shows it.
    """
    page.goto("/queues/orders.dlq")
    page.get_by_role("button", name="Look at messages").click()
    page.get_by_label("or by a header or field").fill("header.x-last-error")
    page.get_by_role("button", name="Group").click()
    expect(page.locator(".groups")).to_contain_text("TimeoutError: psp.example:443")
    page.get_by_label("Filter").fill("origin:orders")
    page.keyboard.press("Enter")
    page.get_by_role("link", name=f"Re-drive all {_ORDERS} that match").click()
    page.get_by_role("button", name="Next: target and pace").click()
    expect(page.get_by_label(re.compile("Ramp"))).to_be_checked()
    page.get_by_label("Why").fill("the provider says it is back")
    page.get_by_role("button", name="Next: review").click()
    expect(page.get_by_text("orders.retry")).to_be_visible()
    expect(page.get_by_text("by design")).to_have_count(0)
    page.get_by_role("button", name=f"Re-drive {_ORDERS} messages").click()
    page.wait_for_url(re.compile("/jobs/"))
    job = page.url.rpartition("/")[2]
    expect(page.locator(".state")).to_have_text("stopped: messages returned", timeout=60_000)
    accessible(page)
    found = service.get(f"/admin/dlq/jobs/{job}")
    assert found["state"] == "stopped"
    assert found["counts"]["done"] < _ORDERS / 2
    page.goto(f"/jobs/{job}/came-back")  # where a queue with more messages leads
    expect(page.get_by_role("link", name="Re-drive all of them…")).to_be_visible()
    expect(page.locator("#search tbody tr").first).to_contain_text("orders.dlq")
    accessible(page)
    page.goto(f"/jobs/{job}")
    page.get_by_role("button", name="Show returned messages").click()
    page.wait_for_url(re.compile("/sessions/"))
    expect(page.locator("table.letters tbody tr").first).to_contain_text("re-driven")
    return job


def _survive_a_crash(page: Page, service: _Service) -> None:
    """Kill the service.

    The page reports it, waits, and reports that held messages were returned.
    """
    release = page.get_by_role("button", name="Release")
    expect(release).to_be_enabled()
    service.kill()
    expect(page.locator("#standing")).to_contain_text("The service has not answered")
    expect(release).to_be_disabled()
    accessible(page, "color-contrast")
    service.start()
    expect(page.locator("#standing")).to_contain_text("holds no messages")
    page.get_by_role("button", name="Look again").click()
    page.wait_for_url(re.compile("/sessions/"))
    expect(page.locator("#standing")).to_be_hidden()
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_role("status").first).to_contain_text("requeued in order")
