"""The web of the demo serves this machine only, and no page of another site."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hopback.observe.metrics import Metrics
from hopback.systems.demo.web import DemoWeb


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
async def test_another_site_reaches_no_system(
    method: str, headers: dict[str, str], status: int
) -> None:
    """A name that is bent to point here is 421, a changing request of another site 403."""
    web = DemoWeb(Metrics())
    web.add("raffle", Starlette(routes=[Route("/users", _ok, methods=["GET", "POST"])]))
    transport = httpx.ASGITransport(web)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
        answer = await client.request(method, "/raffle/users", headers=headers)
    assert answer.status_code == status
