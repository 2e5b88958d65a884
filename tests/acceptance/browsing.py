"""A browser for tests, and accessibility checks of a page."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

__all__ = ["accessible", "open_browser"]

_AXE = Path(__file__).with_name("vendor") / "axe.min.js"
_WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    with sync_playwright() as playwright:
        # The machines of the tests have no GPU. Chromium would start a process that replaces it, and others
        # report new pages that wait for this process forever.
        launched = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        yield launched
        launched.close()


def accessible(page: Page, *rules: str) -> None:
    """Assert that axe finds no violation of WCAG A and AA, or of the given rules only."""
    wanted = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": _WCAG}
    # One evaluation: between two of them a page that was just asked for might take the other's place.
    run = f"only => {{ {_AXE.read_text()}; return axe.run(document, {{runOnly: only}}); }}"
    found = page.evaluate(run, wanted)
    told = [
        (one["id"], [node["html"][:120] for node in one["nodes"]][:3])
        for one in found["violations"]
    ]
    assert not told, f"{page.url}: {told}"
