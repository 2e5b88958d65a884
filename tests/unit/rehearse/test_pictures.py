"""Charts and the page: whole, harmless whatever a queue is called, and in the colours of the admin page."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

from hopback.designs.recommended import recommended
from hopback.rehearse import Forecast, TimedFinding, findings_of, html_page, rehearse
from hopback.rehearse.chart import charts_of, svg_document
from tests.unit.rehearse.worlds import scenario

_EVIL = "<script>alert(1)</script>\"'&\x07"


def _rehearse(queue: str = "orders") -> tuple[Forecast, tuple[TimedFinding, ...]]:
    topology = recommended(queue)
    forecast = rehearse(topology, scenario(queue=queue, outage=(300.0, 3600.0), duration_s=9000.0))
    return forecast, findings_of(topology, forecast)


def test_svg_shows_rates_ages_depths_and_bytes() -> None:
    forecast, findings = _rehearse()
    drawn = ET.fromstring(svg_document("orders", charts_of(forecast, findings)))
    space = {"s": "http://www.w3.org/2000/svg"}
    titles = [text.text or "" for text in drawn.findall(".//s:g/s:text[@class='title']", space)]
    assert titles[:2] == ["orders: messages per second", "orders: age"]
    assert {title.split(":")[0] for title in titles[2:]} == {
        *(queue.queue for queue in forecast.queues),
        "waiting messages",
    }
    assert len(drawn.findall(".//s:rect[@class='down']", space)) == len(titles)
    numbers = [str(text.text) for text in drawn.findall(".//s:text[@class='number']", space)]
    assert sorted(numbers) == [str(number) for number in range(1, len(findings) + 1)]


def test_curves_stay_inside_frame() -> None:
    topology = recommended("orders")
    played = scenario(rate=5000.0, concurrency=2000, outage=(300.0, 1800.0))
    drawn = svg_document("orders", charts_of(rehearse(topology, played)))
    points = re.findall(r'<polyline class="\w+" points="([^"]+)"', drawn)
    places = [tuple(map(float, pair.split(","))) for line in points for pair in line.split()]
    assert len(places) > 1000
    assert all(70 <= x <= 630 and 38 <= y <= 146 for x, y in places)


class _Loaded(HTMLParser):
    """The scripts and resources of a page, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.foreign += [
            f"{tag} {name}"
            for name, _ in attrs
            if name in {"src", "href", "style"} or name[:2] == "on"
        ]


def test_html_page_is_one_file_with_strict_policy() -> None:
    page = html_page(*_rehearse())
    found = _Loaded()
    found.feed(page)
    assert found.foreign == []
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    style = page.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in page
    assert found.tags.count("h1") == 1


def test_html_page_contains_numbers_and_findings() -> None:
    forecast, findings = _rehearse()
    page = html_page(forecast, findings)
    for words in ("Dead letters", "First dead letter", "Time to recover", "Deepest queue", "Oldest message",
                  "Calls during", "Returning", "Memory", "Disk", "retry, at most"):  # fmt: skip
        assert words in page
    for finding in findings:
        assert finding.rule in page
    assert f"<dt>Dead letters</dt><dd>{forecast.dead_letters:,.0f}</dd>" in page
    assert forecast.dead_letters > 7000  # 5/s for 24m30s, by which the outage outlasts all waits


def test_hostile_name_is_escaped_in_page_and_picture() -> None:
    forecast, findings = _rehearse(_EVIL)
    page = html_page(forecast, findings)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x07" not in page
    ET.fromstring(svg_document(_EVIL, charts_of(forecast, findings)))
