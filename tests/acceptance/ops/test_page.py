"""The page in a real browser, used as a person would use it.

Screenshots of every step are written to the folder named by HOPBACK_SCREENSHOTS, if it is set.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from hopback.ops.contract.requests import Pace, RedriveRequest, Selection
from hopback.ops.contract.roles import Grant, Role
from hopback.ops.http.keys import new_key
from hopback.ops.http.settings import parse_settings
from tests.acceptance.browsing import accessible, open_browser
from tests.acceptance.page_server import PageServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.xdist_group("page")  # one server, one browser

_ORDERS = "orders.created.dlq"
_TICKS_MS = 15_000  # RabbitMQ counts every 5 s
_JOB = re.compile(r"/jobs/j-[0-9a-f]+$")
_VIEWER, _VIEWER_KEPT = new_key("vera", Grant(Role.VIEWER), expires=None, made_by="", now=0.0)
_BOSS, _BOSS_KEPT = new_key("ada", Grant(Role.ADMIN), expires=None, made_by="", now=0.0)
_SETTINGS = {
    "auth": {
        "keys": [
            {"name": "vera", "hash": _VIEWER_KEPT.hash, "role": "viewer"},
            {"name": "ada", "hash": _BOSS_KEPT.hash, "role": "admin"},
        ]
    }
}


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    """The service over a shop with dead letters."""
    with PageServer(settings=parse_settings(_SETTINGS, {}, "test")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    with open_browser() as launched:
        yield launched


@pytest.fixture
def page(browser: Browser, server: PageServer) -> Iterator[Page]:
    """A page of which every complaint of the browser and every foreign request is a failure."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, base_url=server.url)
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda said: complaints.append(said.text) if _is_bad(said.type) else None)
    opened.on(
        "request",
        lambda asked: complaints.append(asked.url) if _is_foreign(asked.url) else None,
    )
    yield opened
    context.close()
    assert complaints == []


def _is_bad(kind: str) -> bool:
    return kind in {"error", "warning"}


def _is_foreign(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1:", "data:", "blob:"))


def _sign_in(page: Page, key: str) -> None:
    page.goto("/")
    page.get_by_label("API key or token").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(r"/$"))


def _picture(page: Page, name: str, height: int = 860) -> None:
    folder = os.environ.get("HOPBACK_SCREENSHOTS")
    if folder:
        page.set_viewport_size({"width": 1280, "height": height})
        page.screenshot(path=Path(folder) / f"{name}.png")
        page.set_viewport_size({"width": 1280, "height": 860})


def test_long_session_shows_progress_and_can_be_cancelled(page: Page, server: PageServer) -> None:
    """The page continues to the messages or back to the queue."""
    assert server.service is not None
    _sign_in(page, _BOSS)
    page.goto(f"/queues/{_ORDERS}")
    faults, look = server.service.broker.faults, page.get_by_role("button", name="Look at messages")
    faults.latency = 5.0  # seconds per answer of the broker
    look.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Looking into {_ORDERS}")
    accessible(page)
    _picture(page, "working")
    faults.latency = 0.0  # earlier output is still in transit
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_url(re.compile(rf"/queues/{_ORDERS}$"))
    faults.latency = 5.0
    look.click()
    page.wait_for_url(re.compile(r"/working/"))
    faults.latency = 0.0
    page.wait_for_url(re.compile(r"/sessions/s-"))
    expect(page.locator(".groups > li")).to_have_count(2)
    page.get_by_role("button", name="Release").first.click()
    page.wait_for_url(re.compile(rf"/queues/{_ORDERS}\?told=released"))


def test_operator_finds_redrives_and_discards_on_page(page: Page, server: PageServer) -> None:
    """Errors are read, one group is re-driven with a ramp, and the other messages are discarded."""
    assert server.service is not None
    shop = server.service.shop
    _sign_in(page, _BOSS)
    expect(page.get_by_role("heading", level=1)).to_contain_text("50 dead letters in 2 of")
    _read_the_error(page)
    _redrive_too_early(page)
    shop.repaired.add("stock")
    page.get_by_role("button", name=re.compile("Resume")).click()
    expect(page.locator(".state")).to_have_text("completed", timeout=30_000)
    _picture(page, "job")
    assert len([one for one in shop.handled if one.get("trouble") == "stock"]) >= 8
    _discard_the_rest(page)
    page.goto(f"/queues/{_ORDERS}")
    # The broker's totals are up to 5 s old. The page refreshes itself when they change.
    expect(page.locator(".lead")).to_contain_text("No dead letters", timeout=_TICKS_MS)
    expect(page.get_by_text("The queue is empty.")).to_be_visible()
    for name in ("Look at messages", "Search", "Download"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_role("link", name="Discard from the head")).to_have_count(0)
    page.goto("/audit")
    expect(page.get_by_role("cell", name="addresses are obsolete").first).to_be_visible()


def _read_the_error(page: Page) -> None:
    page.get_by_role("link", name=_ORDERS).click()
    page.get_by_role("button", name="Look at messages").click()
    groups = page.locator(".groups > li")
    expect(groups).to_have_count(2)
    expect(groups.first).to_contain_text("LookupError")
    _picture(page, "groups")
    page.get_by_role("link", name="OrderCreated").first.click()
    expect(page.locator(".story")).to_contain_text("gave up after 2 attempts")
    expect(page.locator("pre.payload")).to_contain_text('"id": 1001')
    _picture(page, "message")
    page.go_back()


def _redrive_too_early(page: Page) -> None:
    """The cause is not fixed: the careful beginning stops by itself after one message."""
    page.get_by_role("link", name="Re-drive 9…").click()
    _three_steps(page, "the warehouse was synchronised", "Re-drive 9 messages")
    expect(page.locator(".state")).to_have_text("stopped: messages arrived", timeout=15_000)
    _picture(page, "came-back", 680)
    job = page.url
    page.get_by_role("button", name="Show returned messages").click()
    page.wait_for_url(re.compile("/sessions/"))
    expect(page.locator("table.letters tbody tr")).to_have_count(1)
    expect(page.locator("table.letters tbody tr")).to_contain_text("LookupError")
    page.get_by_role("button", name="Release").click()
    page.goto("/")
    expect(page.locator("table.queues")).to_contain_text("LookupError")
    page.get_by_role("button", name="Survey queues").click()
    expect(page.locator(".broke li")).to_have_count(3)
    expect(page.get_by_role("button", name="Survey again")).to_be_visible()
    page.goto("/")
    _picture(page, "dead-letters", 560)
    page.goto(job)


def _discard_the_rest(page: Page) -> None:
    page.goto(f"/queues/{_ORDERS}/discard")
    page.get_by_role("button", name="Next: options").click()
    page.get_by_label("Why").fill("addresses are obsolete")
    page.get_by_role("button", name="Next: review").click()
    button = page.get_by_role("button", name=re.compile(r"Discard \d+ messages"))
    page.get_by_label(re.compile("Type")).fill("orders")
    button.click()
    expect(page.get_by_role("alert")).to_contain_text("type the queue's name")
    page.get_by_label(re.compile("Type")).fill(_ORDERS)
    _picture(page, "discard")
    held: list[Route] = []
    page.route(_JOB, lambda route: held.append(route) if not held else route.continue_())
    button.click()
    _answer_too_late(page, held)
    expect(page.locator(".state")).to_have_text("completed", timeout=15_000)
    page.unroute(_JOB)


def _answer_too_late(page: Page, held: list[Route]) -> None:
    """A response requested while the job ran arrives after its end and must not replace the final
    state.
    """
    expect(page.locator(".state")).to_be_visible()
    old = page.content()
    page.wait_for_timeout(1_000)
    for route in held:
        route.fulfill(body=old, content_type="text/html")


def _three_steps(page: Page, reason: str, button: str) -> None:
    page.get_by_role("button", name="Next: target and pace").click()
    expect(page.get_by_label(re.compile("Ramp"))).to_be_checked()
    page.get_by_label("Why").fill(reason)
    page.get_by_role("button", name="Next: review").click()
    expect(page.get_by_role("heading", name="Routing check")).to_be_visible()
    _picture(page, "review")
    page.get_by_role("button", name=button).click()
    page.wait_for_url(re.compile("/jobs/"))


def test_click_and_focus_survive_page_refresh(page: Page, server: PageServer) -> None:
    """The page of a running job refreshes itself repeatedly."""
    assert server.service is not None
    operations = server.service.operations
    slow = RedriveRequest(
        queue="payments.capture.dlq", selection=Selection(), reason="x", pace=Pace(0.001)
    )
    job = server.do(operations.start(slow))
    _sign_in(page, _BOSS)
    page.goto(f"/jobs/{job.id}")
    pause = page.get_by_role("button", name="Pause")
    pause.focus()
    _refresh(page)
    expect(pause).to_be_focused()
    pause.hover()
    page.mouse.down()
    _refresh(page)
    page.mouse.up()
    expect(page.locator(".state")).to_have_text("paused")
    page.get_by_role("button", name=re.compile("Cancel")).click()
    expect(page.locator(".state")).to_have_text("cancelled")


def _refresh(page: Page) -> None:
    """Refresh as the page does when the job has changed, and wait for the response."""
    with page.expect_response(_JOB):
        page.evaluate("htmx.trigger('#job', 'live')")
    page.wait_for_timeout(200)  # the swap follows the answer at once


def test_viewer_sees_numbers_and_gets_403_for_payloads(page: Page) -> None:
    """No button and no address gives access."""
    _sign_in(page, _VIEWER)
    page.goto("/queues/payments.capture.dlq")
    expect(page.get_by_text("needs the role operator")).to_be_visible()
    expect(page.get_by_role("button", name="Look at messages")).to_have_count(0)
    denied = page.request.get("/queues/payments.capture.dlq/discard")
    assert denied.status == 403
    page.goto("/you")
    expect(page.get_by_text("see queues, depths, jobs and topology")).to_be_visible()


def test_map_shows_every_node_and_highlights_routed_queue(page: Page) -> None:
    """The strict content security policy applies."""
    _sign_in(page, _BOSS)
    page.goto("/topology")
    page.locator("select[name=exchange]").select_option("shop.events")
    page.locator("input[name=key]").fill("order.paid")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#reached")).to_contain_text("payments.capture")
    expect(page.locator("#map")).to_have_attribute("data-nodes", re.compile(r"\d\d"))
    _picture(page, "topology", 1120)


def test_every_page_passes_axe_accessibility_checks(page: Page) -> None:
    """The rules are WCAG A and AA. Dark mode is checked for contrast."""
    page.goto("/login")
    accessible(page)
    _sign_in(page, _BOSS)
    for path in ["/", "/jobs", "/topology", "/checks", "/audit", "/you"]:
        page.goto(path)
        accessible(page)
    page.goto("/queues/payments.capture.dlq")
    accessible(page)
    page.get_by_role("button", name="Look at messages").click()
    page.wait_for_url(re.compile("/sessions/"))
    held = page.url
    accessible(page)
    page.get_by_role("link", name="OrderPaid").first.click()
    page.wait_for_url(re.compile("/messages/"))
    accessible(page)
    page.goto(held)
    page.get_by_role("link", name=re.compile("Re-drive 37")).click()
    page.wait_for_url(re.compile("/re-drive"))
    accessible(page)
    page.get_by_role("button", name="Next").click()
    page.get_by_text("Change each message (JSON patch)").click()
    accessible(page)
    _change_by_patch(page)
    page.emulate_media(color_scheme="dark")
    accessible(page, "color-contrast")
    for url in [page.url.partition("?")[0], "/", "/checks", "/you", held]:
        page.goto(url)
        accessible(page, "color-contrast")
    page.get_by_role("button", name="Release").click()


def _change_by_patch(page: Page) -> None:
    """Correct a patch at its field and review its effect, also on a phone."""
    field = page.get_by_label("Change each message (JSON patch)")
    field.fill("[{]")
    page.get_by_label("Why").fill("the wrong number")
    page.get_by_role("button", name="Next: review").click()
    expect(page.get_by_role("alert")).to_contain_text("JSON is malformed")
    expect(field).to_be_focused()
    accessible(page)
    field.fill('[{"op": "replace", "path": "/order/id", "value": "<b>7</b>"}]')
    page.get_by_role("button", name="Next: review").click()
    expect(page.locator("pre.diff ins")).to_have_count(5)
    expect(page.locator("pre.diff ins").first).to_contain_text('"id": "<b>7</b>"')
    expect(page.locator(".review")).to_contain_text("JOB.originals.ndjson")
    expect(page.get_by_role("button", name="Re-drive 37 messages")).to_be_visible()
    accessible(page)
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.set_viewport_size({"width": 1280, "height": 860})


def test_pages_work_on_phone_and_by_keyboard(page: Page) -> None:
    """No content is wider than the screen. `j` moves between rows, `/` focuses the filter."""
    page.set_viewport_size({"width": 360, "height": 740})
    _sign_in(page, _BOSS)
    for path in ["/", "/queues/payments.capture.dlq", "/jobs", "/topology", "/checks", "/you"]:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
    page.set_viewport_size({"width": 1280, "height": 860})
    page.goto("/")
    page.keyboard.press("j")
    expect(page.locator("table.queues tbody th a").first).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Look at messages").click()
    page.wait_for_url(re.compile("/sessions/"))
    page.keyboard.press("/")
    expect(page.locator("#filter")).to_be_focused()
    page.keyboard.type("payload.order.id:2001")
    page.keyboard.press("Enter")
    expect(page.locator("table.letters tbody tr")).to_have_count(1)
    expect(page.get_by_role("heading", level=2).first).to_have_text(
        "By failure of the 1 that match"
    )
    expect(page.locator(".groups .share-of")).to_have_text("1")
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_role("status")).to_contain_text("requeued in order")


def test_downloads_can_be_repeated_and_show_no_progress(page: Page) -> None:
    """The browser saves the answer and stays on the page."""
    _sign_in(page, _BOSS)
    page.goto("/queues/payments.capture.dlq")
    page.get_by_text("Export and import").click()
    _download_twice(page, "Download")
    page.get_by_role("button", name="Look at messages").click()
    page.wait_for_url(re.compile("/sessions/"))
    page.get_by_label("Select all on this page").check()
    _download_twice(page, re.compile(r"Download \d+ selected"))
    page.get_by_role("button", name="Release").click()


def _download_twice(page: Page, button: str | re.Pattern[str]) -> None:
    for _ in range(2):
        with page.expect_download() as found:
            page.get_by_role("button", name=button).click()
        assert found.value.suggested_filename == "payments.capture.dlq.ndjson"
    page.wait_for_timeout(1_000)  # the progress appears after 0.7 s
    expect(page.locator("#working")).to_be_hidden()


def test_ended_session_shows_no_countdown(page: Page, server: PageServer) -> None:
    """Another operator or a restart has ended it."""
    assert server.service is not None
    operations = server.service.operations
    _sign_in(page, _BOSS)
    page.goto("/queues/payments.capture.dlq")
    page.get_by_role("button", name="Look at messages").click()
    page.wait_for_url(re.compile("/sessions/"))
    expect(page.locator(".countdown")).to_contain_text("Requeued in")
    for view in operations.sessions():
        server.do(operations.release(view.id))
    expect(page.locator("#standing")).to_contain_text(
        "This session has ended and holds no messages."
    )
    expect(page.locator(".countdown")).to_be_hidden()
    expect(page.get_by_role("button", name="Hold longer")).to_be_hidden()
    expect(page.get_by_role("heading", level=1)).not_to_contain_text(" held", use_inner_text=True)
    expect(page.get_by_role("button", name="Look again")).to_be_enabled()
