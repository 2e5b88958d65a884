"""A team at the page, in a real browser: sign-in by a provider of another maker, and alerts."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

from hopback.endpoint import Endpoint, Response
from hopback.ops.http.settings import parse_settings
from tests.acceptance.page_server import PageServer
from tests.harness.oidc import SECRET, oidc_provider, oidc_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from hopback.endpoint import Request

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("page-team")]

_SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
_BUTTON = "Sign in with your company account"


@contextmanager
def _webhook(taken: list[bytes]) -> Iterator[str]:
    """Run a webhook in a separate thread that records its requests."""

    async def keep(request: Request) -> Response:
        taken.append(request.body)
        return Response(HTTPStatus.NO_CONTENT)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="webhook")
    thread.start()
    endpoint = Endpoint(keep)
    host, port = asyncio.run_coroutine_threadsafe(endpoint.open("127.0.0.1", 0), loop).result(10)
    try:
        yield f"http://{host}:{port}/hook"
    finally:
        asyncio.run_coroutine_threadsafe(endpoint.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _free_port() -> int:
    """The provider has to know the page's address before there is a page."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def taken() -> list[bytes]:
    """The notices that the webhook received."""
    return []


@pytest.fixture(scope="module")
def server(taken: list[bytes]) -> Iterator[PageServer]:
    """The service over a shop with dead letters, with sign-in by a provider."""
    port = _free_port()
    page = f"http://127.0.0.1:{port}"
    with oidc_provider(page) as provider, _webhook(taken) as hook:
        said = oidc_settings(provider.issuer, page)
        said["alerts"] = {
            "link": page,
            "wait_seconds": 0,
            "every_seconds": 1,
            "targets": [{"name": "ops", "kind": "webhook", "url": hook}],
            "rules": [
                {"name": "orders fail", "kind": "depth", "queues": ["orders.*"], "above": 5},
                {"name": "nobody looks", "kind": "oldest-age", "older_than_seconds": 86400},
            ],
        }
        environment = {"OIDC_SECRET": SECRET}
        settings = parse_settings(said, environment, "test")
        with PageServer(port=port, settings=settings, environment=environment) as running:
            yield running


@pytest.fixture
def page(browser: Browser, server: PageServer) -> Iterator[Page]:
    """A page of which every complaint of the browser is a failure."""
    context = browser.new_context(base_url=server.url)
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    context.close()
    assert complaints == []


def _pictures(page: Page, name: str) -> None:
    """The page, wide and narrow, light and dark, in the folder named by HOPBACK_SCREENSHOTS if it is set."""
    folder = os.environ.get("HOPBACK_SCREENSHOTS")
    for size, (width, height) in _SIZES.items() if folder else ():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
            page.screenshot(path=Path(str(folder)) / f"{name}-{size}-{scheme}.png")


def _sign_in(page: Page, name: str, onward: str) -> None:
    page.goto(onward)
    _pictures(page, "sign-in")
    page.get_by_role("link", name=_BUTTON).click()
    page.get_by_placeholder("Enter any login").fill(name)
    page.get_by_placeholder("and password").fill("x")
    page.get_by_role("button").click()
    page.get_by_role("button").click()  # yes, this page may know who it is


def test_member_signs_in_follows_alert_link_and_signs_out(
    page: Page, server: PageServer, taken: list[bytes]
) -> None:
    """The sign-in returns to the requested page. Signing out ends both sessions."""
    _sign_in(page, "admin", "/alerts")
    page.wait_for_url(re.compile("/alerts$"))
    expect(page.get_by_role("heading", level=1)).to_have_text("1 active alert", timeout=15_000)
    expect(page.get_by_role("cell", name="13 dead letters, more than 5.")).to_be_visible()
    _pictures(page, "alerts")
    page.get_by_role("button", name="Test ops").click()
    expect(page.get_by_role("status")).to_contain_text("ops accepted the test message")
    assert f'"link": "{server.url}/queues/orders.created.dlq"'.encode() in taken[0]
    page.goto(f"{server.url}/queues/orders.created.dlq")
    expect(page.get_by_role("heading", level=1)).to_contain_text("orders.created.dlq")
    page.goto("/you")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="Yes, sign me out").click()
    page.wait_for_url(re.compile("/login"))
    page.goto("/alerts")
    expect(page.get_by_role("link", name=_BUTTON)).to_be_visible()


def test_viewer_sees_alerts_without_targets(page: Page) -> None:
    """Rules, targets and test notices are for admins."""
    _sign_in(page, "viewer", "/alerts")
    expect(page.get_by_role("heading", level=1)).to_have_text("1 active alert", timeout=15_000)
    expect(page.get_by_role("button", name="Test ops")).to_have_count(0)
    expect(page.get_by_role("heading", name="Rules")).to_have_count(0)


def test_team_adds_note_filter_and_reimports_download(page: Page) -> None:
    queue = "payments.capture.dlq"
    _sign_in(page, "operator", f"/queues/{queue}")
    page.get_by_role("button", name="Look at messages").click()
    page.get_by_role("link", name="Notes").first.click()
    page.get_by_label("Note for the team").fill("known, fixed in 2.3")
    page.get_by_role("button", name="Save note").click()
    expect(page.get_by_text("known, fixed in 2.3")).to_be_visible()
    expect(page.get_by_role("cell", name="note.add")).to_be_visible()
    _pictures(page, "group")
    shared = page.url
    page.go_back()
    page.go_back()
    expect(page.get_by_text("known, fixed in 2.3")).to_be_visible()
    page.get_by_label("Filter", exact=True).fill("error:TimeoutError")
    page.get_by_role("button", name="Filter", exact=True).click()
    page.get_by_label("Save this filter as").fill("timeouts")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download these").click()
    file = download.value.path()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("button", name="Look: timeouts")).to_be_visible()
    page.get_by_text("Export and import").click()
    _pictures(page, "queue")
    page.get_by_label("File of an export").set_input_files(file)
    page.get_by_role("button", name="Import into this queue").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("37 messages imported")
    page.goto(shared)
    expect(page.get_by_role("heading", level=1)).to_contain_text("Notes on a group")
