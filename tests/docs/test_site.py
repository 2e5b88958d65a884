"""The documentation site: strict build, valid links and anchors, readable from files in a browser."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import sync_playwright

from hopback import __version__
from tests.docs.pages import ROOT, pages

if TYPE_CHECKING:
    from pathlib import Path

# All tests share one build.
pytestmark = pytest.mark.xdist_group("documentation-site")

_SITE = ROOT / "tools" / "site"
# Elements whose target the browser loads with the page.
_LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}


class _Page(HTMLParser):
    """The links, the loaded files and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.leads_to: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.anchors.add(value)
            if (tag, name) in _LOADED:
                self.loads.append(value)
            elif tag == "a" and name == "href":
                self.leads_to.append(value)


def _problems(folder: Path) -> list[str]:
    """Return every broken link and every file loaded from another host."""
    found = {path: _Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    problems = []
    for path, page in found.items():
        where = path.relative_to(folder)
        problems += [f"{where} loads {each}" for each in page.loads if urlsplit(each).netloc]
        for each in {*page.leads_to, *page.loads}:
            parts = urlsplit(each)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = found.get(target)
            if not target.is_file():
                problems.append(f"{where} links to {each}, which does not exist")
            elif known is not None and unquote(parts.fragment) not in known.anchors:
                problems.append(f"{where} links to {each}, which has no such anchor")
    return problems


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build this version as `make docs` does and return its folder. A warning fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(_SITE / "build.py"), str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / __version__


def test_every_link_and_anchor_of_the_site_exists(site: Path) -> None:
    """Includes pages made from docstrings. The site loads no file from another host."""
    assert _problems(site) == []


def test_missing_page_and_anchor_and_foreign_script_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="a.html#here">1</a><a href="#there">2</a><a href="b.html">3</a>'
        '<script src="https://example.org/x.js"></script>'
    )
    problems = sorted(_problems(tmp_path))
    assert [line.split()[1:3] for line in problems] == [
        ["links", "to"],
        ["links", "to"],
        ["loads", "https://example.org/x.js"],
    ]


def test_site_contains_every_page_and_every_public_name(site: Path) -> None:
    """Each name of the front doors has its docstring."""
    docs = [page.relative_to(ROOT / "docs") for page in pages() if page.parent != ROOT]
    made = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    named = {
        "pages.html"
        if str(page) == "README.md"
        else str(
            page.with_name("index.html") if page.stem == "README" else page.with_suffix(".html")
        )
        for page in docs
    }
    assert named <= made
    door = _Page((site / "api" / "hopback.html").read_text(encoding="utf-8"))
    assert {"hopback.App", "hopback.App.handler", "hopback.Park", "hopback.compose"} <= door.anchors
    inner = _Page((site / "api" / "hopback.ops.html").read_text(encoding="utf-8"))
    assert "hopback.ops.DeadLetters.search" in inner.anchors
    store = _Page((site / "api" / "hopback.store.html").read_text(encoding="utf-8"))
    repeated = {each for each in store.anchors if each.startswith("hopback.store.transaction.T")}
    assert "hopback.store.transaction.transaction" in store.anchors, "the function, not its module"
    assert repeated == set()
    for module, names in {
        "faststream": {"FastStreamPlans.queue", "FastStreamPlans.start"},
        "aio_pika": {"AioPikaPlans.consume", "PlannedMessage.reject"},
        "pika": {"PikaPlans.consume", "PlannedChannel.basic_ack"},
        "celery": {"park_failed_tasks", "check_settings"},
        "planned": {"PlanOptions.ownership", "PlanOptions.publish_to"},
    }.items():
        name = f"hopback.integrations.{module}"
        own = _Page((site / "api" / f"{name}.html").read_text(encoding="utf-8"))
        assert {f"{name}.{each}" for each in names} <= own.anchors
        internal = {
            each for each in own.anchors if re.search(r"\.(begin|taken|conclude|run)$", each)
        }
        assert internal == set(), "methods for other modules of Hopback"


def test_vendored_scripts_match_the_manifest() -> None:
    """The folder contains no other files."""
    folder = _SITE / "vendor"
    assets = tomllib.loads((folder / "manifest.toml").read_text())["asset"]
    for asset in assets:
        assert {"name", "version", "licence"} <= set(asset)
        content = (folder / asset["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == asset["sha256"], asset["file"]
        assert (folder / asset["licence_file"]).stat().st_size > 0
    named = {asset[key] for asset in assets for key in ("file", "licence_file")}
    assert {path.name for path in folder.iterdir()} == {"manifest.toml", *named}


def test_site_works_from_files_in_a_browser(site: Path) -> None:
    """Search, versions and drawings work without a server and on a narrow screen, without other requests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        try:
            page = browser.new_page(viewport={"width": 390, "height": 844})
            requested: list[str] = []
            errors: list[str] = []
            page.on("request", lambda request: requested.append(request.url))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto((site.parent / "index.html").as_uri())
            page.wait_for_url("**/index.html")
            page.wait_for_selector(".doors")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            page.set_viewport_size({"width": 1440, "height": 900})
            assert page.locator(".version option").all_inner_texts() == [__version__]
            page.fill("input[name=query]", "rpc")
            first = page.locator(".md-search-result__item").first
            assert "Request/reply" in first.inner_text()
            page.goto((site / "explanation" / "how-a-retry-travels.html").as_uri())
            page.wait_for_selector("div.drawing svg")
            assert "orders.retry.5m" in page.locator("div.drawing svg").first.inner_html()
            page.wait_for_function("document.querySelectorAll('div.drawing svg').length === 2")
        finally:
            browser.close()
    assert [url for url in requested if not url.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []
