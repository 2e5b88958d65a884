"""The web server of the demo: its page and refused requests."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hopback.designs import DESIGNS
from hopback.durations import format_duration
from hopback.observe.metrics import Metrics
from hopback.systems import HOMES
from hopback.systems.comparison import COMPARISON
from hopback.systems.demo.page import ShownSystem
from hopback.systems.demo.web import DemoWeb
from hopback.topology.plan import Return


async def _ok(_request: object) -> Response:
    return PlainTextResponse("done", 202)


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {}, 202),
        ("GET", {}, 202),
        ("POST", {"Origin": "http://127.0.0.1:8080"}, 202),
        ("POST", {"Sec-Fetch-Site": "same-origin"}, 202),
        ("GET", {"Sec-Fetch-Site": "cross-site"}, 202),
        ("POST", {"Host": "evil.test"}, 421),
        ("GET", {"Host": "evil.test:8080"}, 421),
        ("POST", {"Origin": "https://evil.test"}, 403),
        ("POST", {"Origin": "null"}, 403),
        ("POST", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", {"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
async def test_requests_of_other_sites_are_refused(
    method: str, headers: dict[str, str], status: int
) -> None:
    """A foreign host name returns 421, a changing request of another site 403."""
    web = DemoWeb(Metrics())
    web.add("raffle", Starlette(routes=[Route("/users", _ok, methods=["GET", "POST"])]))
    transport = httpx.ASGITransport(web)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        answer = await client.request(method, "/raffle/users", headers=headers)
    assert answer.status_code == status


def test_comparison_agrees_with_the_designs() -> None:
    assert [one.name for one in COMPARISON] == list(HOMES)
    for row in COMPARISON:
        faithful, hardened = (DESIGNS[row.name].build(hardened=form) for form in (False, True))
        plan, safe = faithful.plans[0], hardened.plans[0]
        waits = row.waits.replace(" min", "m").replace(" s", "s")
        assert waits == ", ".join(format_duration(tier.delay_ms) for tier in plan.tiers)
        assert row.leaves_by.split()[0] == str(plan.leave)
        assert row.returns_by.startswith("default") is (plan.returns is Return.QUEUE)
        assert row.attempts == str(plan.attempts)
        assert row.gives_up_by.split()[0] == str(plan.parking.by)
        assert ("quorum" in row.hardened) is (faithful.queues[0].type != hardened.queues[0].type)
        assert ("publishes retries" in row.hardened) is (plan.leave != safe.leave)
        assert ("publishes dead letters" in row.hardened) is (plan.parking.by != safe.parking.by)
        assert ("returns" in row.hardened) is (plan.returns != safe.returns)


async def test_page_links_readme_diagram_and_dead_letters_of_each_system() -> None:
    web = DemoWeb(Metrics())
    shown = [ShownSystem(name, "title", f"/{name}", (DESIGNS[name].build(),), ()) for name in HOMES]
    web.show(shown, "guide")
    transport = httpx.ASGITransport(web)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        page = (await client.get("/demo")).text
        assert page.index("<h2>ratatoskr</h2>") < page.index("<h2>freeflow</h2>")
        for name in HOMES:
            assert f'<th scope="row">{name}</th>' in page
            readme = await client.get(f"/demo/{name}/readme")
            assert f'href="/demo/{name}/readme"' in page
            assert readme.text.startswith("# ")
        assert 'href="/topology?focus=my-service.events"' in page
        assert 'href="/queues/freeflow.events.dlq"' in page
        assert "<td>publish to <code>freeflow.events.retry</code></td>" in page
        assert "<td>30\N{NO-BREAK SPACE}s, 5\N{NO-BREAK SPACE}min" in page
        assert (await client.get("/demo/other/readme")).status_code == 404
