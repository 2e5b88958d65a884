"""The rehearsal page: form, results and refused input."""

from __future__ import annotations

import re

import pytest

from hopback.rehearse.chart import chart_css, page_css
from tests.unit.ops.admin_service import DLQ, MAIN, admin

_ASKED = {"queue": MAIN, "rate": "50/s", "outage": "20m", "ask": "1"}


async def test_map_links_planned_queues_to_rehearsal() -> None:
    """The form is filled in. A rate is given only if it is known."""
    async with admin() as service:
        rows = (await service.client.get("/topology")).text
        assert re.findall(r'href="(/topology/rehearse[^"]*)"', rows) == [
            f"/topology/rehearse?queue={MAIN}"
        ]
        form = (await service.client.get("/topology/rehearse", params={"queue": MAIN})).text
    assert "has no rate for this queue" in form
    assert 'name="outage" value="20m"' in form
    assert 'name="consumers" value="1×10"' in form
    assert ">Forecast<" not in form


async def test_outage_rehearsal_shows_facts_findings_and_charts() -> None:
    """Two attempts with one wait of 30 s: an outage of 20 min at 50/s parks nearly all messages."""
    async with admin() as service:
        answer = await service.client.get("/topology/rehearse", params=_ASKED)
    assert answer.status_code == 200
    parked = re.search(r"<dt>Dead letters</dt><dd>([\d,]+)</dd>", answer.text)
    assert parked is not None
    assert int(parked[1].replace(",", "")) == pytest.approx(50 * (1200 - 30), rel=0.02)
    assert "attempts-run-out" in answer.text
    assert answer.text.count('<svg class="chart"') >= 5
    assert " style=" not in answer.text
    assert "<style" not in answer.text


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"rate": "fast"}, 400, "expected a rate"),
        ({"rate": ""}, 400, "expected a rate"),
        ({"outage": "400d"}, 400, "at most 7d"),
        ({"consumers": "0×4"}, 400, "processes×concurrency"),
        ({"handler": "0s"}, 400, "a handler that takes some time"),
        ({"fail": "120%"}, 400, "at most 100%"),
        ({"queue": DLQ}, 404, "has no known plan"),
        ({"queue": "nowhere"}, 404, "has no known plan"),
    ],
)
async def test_invalid_rehearsal_is_refused_and_keeps_form_values(
    change: dict[str, str], status: int, words: str
) -> None:
    async with admin() as service:
        answer = await service.client.get("/topology/rehearse", params=_ASKED | change)
    assert answer.status_code == status
    assert words.lower() in answer.text.lower()
    if status == 400:
        for name, value in (_ASKED | change).items():
            if name not in ("queue", "ask"):
                assert f'name="{name}" value="{value}"' in answer.text


async def test_page_serves_colours_and_charts_of_rehearsal() -> None:
    async with admin() as found:
        for name in ("colors.css", "chart.css"):
            answer = await found.client.get(f"/static/{name}")
            assert (answer.status_code, answer.text in page_css() + chart_css()) == (200, True)
            assert f'href="/static/{name}"' in (await found.client.get("/")).text
