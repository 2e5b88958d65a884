"""A grant for some queues binds where a re-drive goes, which session it may use, and which name is meant."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import jwt
import pytest

from hopback.clock import ManualClock
from hopback.designs import DESIGNS
from hopback.headers import failure_in, failure_json
from hopback.message import Message, Properties
from hopback.ops.http import create_app
from hopback.topology.model import Binding, Exchange, ExchangeType, Queue
from hopback.version import BrokerVersion
from tests.unit.ops.admin_service import DLQ, MAIN, NOW, SECRET, admin, dead_letter, settings
from tests.unit.ops.service import open_service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.ops.admin_service import Admin

_JOBS = "/admin/dlq/jobs"
_GRANTS = [
    {"claim": "team", "role": "operator", "queues": ["orders", "orders.*"]},
    {"claim": "boss", "role": "admin", "queues": ["orders", "orders.*"]},
    {"claim": "all", "role": "operator", "queues": ["*"]},
]
_OTHER = "payments.dlq"
_ODD = "%6Frders.x.dlq"
"""Decoded once more, it would be the name of a queue that the team may use."""


def _as(role: str) -> dict[str, str]:
    claims = {"iss": "https://id.test", "aud": "hopback", "sub": role, "roles": [role], "exp": 9e9}
    return {"Authorization": f"Bearer {jwt.encode(claims, SECRET, algorithm='HS256')}"}


@asynccontextmanager
async def _shop(redrives: int = 0) -> AsyncIterator[Admin]:
    """The queues of two teams, with dead letters in both, and exchanges between them."""
    queues = [Queue(name) for name in ("vault", "orders.copy", "payments", _OTHER, "x", _ODD)]
    dead_letters = [dead_letter(number, redrives=redrives) for number in range(3)]
    async with admin(
        *dead_letters, extra=tuple(queues), settings=settings(grants=_GRANTS)
    ) as service:
        connection = await service.broker.connect("test")
        channel = await connection.open_channel()
        await channel.declare_exchange(Exchange("mixed", ExchangeType.TOPIC))
        await channel.bind(Binding("mixed", "orders.copy", "#"))
        await channel.bind(Binding("mixed", "vault", "secret.#"))
        await channel.declare_exchange(Exchange("by-headers", ExchangeType.HEADERS))
        await channel.bind(Binding("by-headers", "orders.copy", arguments={"x-match": "all"}))
        await channel.bind(Binding("by-headers", "vault", arguments={"secret": "yes"}))
        for queue in (_OTHER, _ODD):
            body = b'{"secret": "p-1"}'
            await channel.publish(Message("", queue, body, Properties(delivery_mode=2)))
        await connection.close()
        yield service


def _depth(service: Admin, queue: str) -> int:
    return len(service.broker.snapshot().queue(queue).ready)


def _order(**target: str) -> dict[str, Any]:
    return {"kind": "re-drive", "queue": DLQ, "reason": "x", "target": target}


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ({"kind": "queue", "routingKey": "vault"}, 403),
        ({"kind": "exchange", "exchange": "", "routingKey": "vault"}, 403),
        ({"kind": "exchange", "exchange": "mixed", "routingKey": "secret.plan"}, 403),
        ({"kind": "exchange", "exchange": "by-headers", "routingKey": ""}, 403),
        ({"kind": "exchange", "exchange": "nosuch", "routingKey": ""}, 403),
        ({"kind": "exchange", "exchange": "mixed", "routingKey": "order.made"}, 202),
        ({"kind": "queue", "routingKey": "orders.copy"}, 202),
        ({"kind": "queue", "routingKey": MAIN}, 202),
        ({"kind": "failed-queue"}, 202),
        ({"kind": "origin-exchange"}, 202),
        ({"kind": "design"}, 202),
    ],
    ids=str,
)
async def test_redrive_requires_role_for_every_reached_queue(
    target: dict[str, str], status: int
) -> None:
    """The queue in which the messages failed is exempt."""
    async with _shop() as service:
        order = _order(**target)
        planned = await service.client.post(
            _JOBS, json=order | {"dryRun": True}, headers=_as("team")
        )
        answer = await service.client.post(_JOBS, json=order, headers=_as("team"))
        assert (planned.status_code, answer.status_code) == (200 if status == 202 else 403, status)
        if status == 202:
            await service.operations.wait(answer.json()["id"])
            assert _depth(service, DLQ) == 0
        else:
            assert _depth(service, DLQ) == 3
            denied = (await service.operations.audit())[0]
            assert (denied.action, denied.result) == ("access.denied", "refused")
        assert _depth(service, "vault") == 0


async def test_redrive_to_original_exchange_requires_grant_for_all_bound_queues() -> None:
    async with _shop() as service:
        connection = await service.broker.connect("test")
        await (await connection.open_channel()).bind(Binding("shop.events", "vault", "never"))
        await connection.close()
        order = _order(kind="origin-exchange")
        refused = await service.client.post(_JOBS, json=order, headers=_as("team"))
        assert (refused.status_code, "'vault'" in refused.text) == (403, True)
        assert (await service.client.post(_JOBS, json=order, headers=_as("all"))).status_code == 202


@pytest.mark.parametrize("kind", ["design", "retry-exchange"])
async def test_redrive_by_design_requires_grant_for_all_queues_bound_to_its_exchange(
    kind: str,
) -> None:
    """The retry exchange of this design leads to a queue with a delay, which needs no grant."""
    team = {"claim": "team", "role": "operator", "queues": ["q.audit", "q.audit.dlq"]}
    opened = open_service(
        DESIGNS["file-pipeline"].build({}), BrokerVersion(3, 10), clock=ManualClock(NOW)
    )
    async with opened as (broker, operations):
        app = create_app(
            operations,
            environment={"JWT_SECRET": SECRET},
            first_read_s=None,
            settings=settings(grants=[team]),
        )
        connection = await broker.connect("test")
        channel = await connection.open_channel()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=_as("team")
        ) as client:
            order = _order(kind=kind) | {"queue": "q.audit.dlq", "dryRun": True}
            assert (await client.post(_JOBS, json=order)).status_code == 200
            await channel.declare_queue(Queue("vault"))
            await channel.bind(Binding("retry.q.audit", "vault", "retry"))
            refused = await client.post(_JOBS, json=order)
            assert (refused.status_code, "'vault'" in refused.text) == (403, True)
        await connection.close()


async def test_retry_of_failures_requires_grant_for_target() -> None:
    """An admin of the queue cannot repeat another operator's job into an ungranted queue."""
    async with _shop(redrives=3) as service:  # the loop guard leaves all messages out
        order = _order(kind="queue", routingKey="vault")
        job = (await service.client.post(_JOBS, json=order, headers=_as("all"))).json()
        await service.operations.wait(job["id"])
        again = await service.client.post(
            f"{job['url']}/retry-failures", json={"reason": "x"}, headers=_as("boss")
        )
        assert again.status_code == 403


async def test_page_refuses_redrive_into_ungranted_queue() -> None:
    """Both the review and the start are refused."""
    async with _shop() as service:
        form = {"on": "2", "target": "queue", "target_queue": "vault", "reason": "x"}
        for step in ("3", "go"):
            answer = await service.client.post(
                f"/queues/{DLQ}/re-drive", data=form | {"step": step}, headers=_as("team")
            )
            assert answer.status_code == 403
        fine = form | {"target_queue": "orders.copy", "step": "3"}
        shown = await service.client.post(f"/queues/{DLQ}/re-drive", data=fine, headers=_as("team"))
        assert (shown.status_code, "Re-drive 3 messages" in shown.text) == (200, True)
        assert _depth(service, "vault") == 0


async def test_queue_name_in_path_is_decoded_once() -> None:
    async with _shop() as service:
        path = f"/admin/dlq/queues/{_ODD.replace('%', '%25')}"
        seen = await service.client.post(f"{path}/sessions", json={}, headers=_as("boss"))
        plain = await service.client.get(path, headers=_as("boss"))
        assert (seen.status_code, plain.status_code) == (403, 403)
        assert "p-1" not in seen.text
        assert _depth(service, _ODD) == 1


async def test_session_of_another_queue_is_404() -> None:
    """The response reveals no name and no count."""
    async with _shop() as service:
        opened = await service.client.post(
            f"/admin/dlq/queues/{_OTHER}/sessions", json={}, headers=_as("all")
        )
        session = opened.json()["id"]
        for term in ("payload.secret:p*", "payload.secret:q*"):
            page = await service.client.get(
                f"/queues/{DLQ}/re-drive",
                params={"session": session, "filter": term},
                headers=_as("team"),
            )
            assert (page.status_code, "payments" in page.text) == (404, False)
            for step in ("2", "3", "go"):
                form = {"step": step, "on": "1", "session": session, "reason": "x"}
                answer = await service.client.post(
                    f"/queues/{DLQ}/discard", data=form, headers=_as("team")
                )
                assert answer.status_code == 404
        order = {"kind": "re-drive", "queue": DLQ, "reason": "x", "selection": {"session": session}}
        begun = await service.client.post(_JOBS, json=order, headers=_as("team"))
        assert (begun.status_code, "payments" in begun.text) == (404, False)


async def test_jobs_of_others_do_not_hide_the_jobs_that_a_caller_may_view() -> None:
    async with _shop() as service:
        others = {
            "kind": "discard",
            "queue": _OTHER,
            "reason": "x",
            "confirm": _OTHER,
            "export": False,
        }
        for order, caller in ((_order(), "team"), (others, "all"), (others, "all")):
            answer = await service.client.post(_JOBS, json=order, headers=_as(caller))
            assert answer.status_code == 202, answer.text
            await service.operations.wait(answer.json()["id"])
        found = await service.client.get(_JOBS, params={"limit": 1}, headers=_as("team"))
        assert [job["queue"] for job in found.json()["items"]] == [DLQ]


async def test_error_pages_show_only_texts_and_times_of_permitted_queues() -> None:
    """The queue of another team has older messages with the same error."""
    hidden = dead_letter(1)
    failure = failure_in(hidden.properties.headers["hopback-failure"])
    assert failure is not None
    old = failure_json(failure._replace(first=NOW - 9e5, last=NOW - 9e5)) or ""
    headers = {**hidden.properties.headers, "hopback-failure": old}
    hidden = replace(
        hidden, routing_key="billing.dlq", properties=replace(hidden.properties, headers=headers)
    )
    extra = (Queue("billing"), Queue("billing.dlq"))
    async with admin(
        dead_letter(2), hidden, extra=extra, settings=settings(grants=_GRANTS)
    ) as service:
        await service.operations.errors(survey=True)

        async def page(path: str, role: str = "team") -> str:
            return (await service.client.get(path, headers=_as(role))).text

        link = re.search(r'href="(/errors/\w+)">LookupError<', await page("/errors"))
        assert link is not None
        for path in ("/", "/errors", link[1]):
            shown, whole = await page(path), await page(path, "all")
            assert "order 2 cannot be found" in shown
            assert "order 1 cannot be found" in whole
            assert "2023-11-04" in whole
            for other in ("billing.dlq", "order 1 cannot be found", "2023-11-04"):
                assert other not in shown
        assert "No matching errors" in await page("/errors?find=order+1")
