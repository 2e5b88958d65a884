"""Every endpoint and page action, called with every role and scope that its table allows or refuses.

The expected answers are derived from the role and the queue rules of each row, and from the queues that each
sample request touches. A row without rules or without a sample fails.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from hopback.ops.contract.roles import Role
from hopback.ops.http.app import ENDPOINTS, PAGES
from hopback.ops.http.brokers import BROKERS
from hopback.ops.http.settings import parse_settings
from hopback.topology.model import Queue
from tests.unit.ops.admin_service import DLQ, MAIN, SECRET, admin, dead_letter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import httpx

    from hopback.ops.http.api import AnsweredEndpoint
    from hopback.ops.page.pages import PageRow
    from tests.unit.ops.admin_service import Admin

OTHER = "payments"
_QUEUES = (MAIN, DLQ, OTHER)
_EVERYTHING = ("*",)
_BROKERS = ("here", "elsewhere")
_SCOPES = (
    _EVERYTHING,
    *(scope for size in range(1, 4) for scope in combinations(_QUEUES, size)),
    ("unrelated.*",),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """A request, and the queues that it touches."""

    touches: tuple[str, ...] = ()
    body: dict[str, Any] | None = None
    form: dict[str, str] | None = None
    query: dict[str, str] = field(default_factory=dict)
    path: dict[str, str] = field(default_factory=dict)
    streams: bool = False
    """The answer has no end, so only refusals are tried."""


_REDRIVE = {"kind": "re-drive", "queue": DLQ, "reason": "test"}
_TO_OTHER = {"kind": "queue", "routingKey": OTHER}
_FORM_TO_OTHER = {"target": "queue", "target_queue": OTHER, "reason": "test", "on": "2"}
_EDIT = {"edit": {"headers": {"a": "b"}}, "reason": "test"}
_ON_QUEUE, _ANY = Sample((DLQ,)), Sample()
_SESSION, _JOB = "/admin/dlq/sessions/{session}", "/admin/dlq/jobs/{job}"

API: dict[str, tuple[Sample, ...]] = {
    "GET /admin/dlq/overview": (_ANY,),
    "GET /admin/dlq/candidates": (_ANY,),
    "PUT /admin/dlq/candidates": (
        Sample((DLQ,), {"queue": DLQ, "answer": "ignore"}),
        Sample((DLQ, OTHER), {"queue": DLQ, "answer": "add", "mainQueue": OTHER}),
    ),
    "GET /admin/dlq/queues/{queue}": (_ON_QUEUE,),
    "GET /admin/dlq/errors": (_ANY,),
    "POST /admin/dlq/errors/survey": (_ANY,),
    "GET /admin/dlq/queues/{queue}/trend": (_ON_QUEUE,),
    "POST /admin/dlq/search": (
        Sample((DLQ,), {"filter": "", "queues": [DLQ]}, streams=True),
        Sample((DLQ,), {"job": "{job}"}, streams=True),
    ),
    "POST /admin/dlq/queues/{queue}/lift-limit": (_ON_QUEUE,),
    "POST /admin/dlq/queues/{queue}/restore-limit": (_ON_QUEUE,),
    "POST /admin/dlq/queues/{queue}/sessions": (Sample((DLQ,), {}),),
    f"GET {_SESSION}": (_ON_QUEUE,),
    f"DELETE {_SESSION}": (_ON_QUEUE,),
    f"POST {_SESSION}/renew": (_ON_QUEUE,),
    f"GET {_SESSION}/messages": (_ON_QUEUE,),
    f"GET {_SESSION}/messages/{{message}}": (_ON_QUEUE,),
    f"GET {_SESSION}/messages/{{message}}/body": (_ON_QUEUE,),
    f"POST {_SESSION}/messages/{{message}}/edit": (
        Sample((DLQ, MAIN), _EDIT),
        Sample((DLQ, OTHER), _EDIT | {"target": _TO_OTHER}),
    ),
    f"GET {_SESSION}/groups": (_ON_QUEUE,),
    "GET /admin/dlq/jobs": (_ANY,),
    "POST /admin/dlq/jobs": (
        Sample((DLQ, MAIN), _REDRIVE | {"dryRun": True}),
        Sample((DLQ, OTHER), _REDRIVE | {"dryRun": True, "target": _TO_OTHER}),
        Sample((DLQ,), {"kind": "discard", "queue": DLQ, "reason": "test", "dryRun": True}),
    ),
    f"GET {_JOB}": (_ON_QUEUE,),
    f"PATCH {_JOB}": (Sample((DLQ,), {"rate": 5}),),
    f"GET {_JOB}/failures": (_ON_QUEUE,),
    f"GET {_JOB}/events": (Sample((DLQ,), streams=True),),
    f"POST {_JOB}/cancel": (_ON_QUEUE,),
    f"POST {_JOB}/pause": (_ON_QUEUE,),
    f"POST {_JOB}/resume": (Sample((DLQ, OTHER)),),
    f"POST {_JOB}/retry-failures": (Sample((DLQ, OTHER), {"reason": "test"}),),
    f"GET {_JOB}/export": (_ON_QUEUE,),
    "POST /admin/dlq/queues/{queue}/export": (_ON_QUEUE,),
    "POST /admin/dlq/queues/{queue}/import": (_ON_QUEUE,),
    "GET /admin/dlq/queues/{queue}/notes": (_ON_QUEUE,),
    "POST /admin/dlq/queues/{queue}/notes": (Sample((DLQ,), {"group": "g", "text": "known"}),),
    "DELETE /admin/dlq/queues/{queue}/notes/{note}": (_ON_QUEUE,),
    "GET /admin/dlq/queues/{queue}/history": (_ON_QUEUE,),
    "GET /admin/dlq/queues/{queue}/filters": (_ON_QUEUE,),
    "POST /admin/dlq/queues/{queue}/filters": (Sample((DLQ,), {"name": "n", "filter": "age>1h"}),),
    "DELETE /admin/dlq/queues/{queue}/filters/{name}": (_ON_QUEUE,),
    "GET /admin/alerts": (_ANY,),
    "POST /admin/alerts/test": (Sample((), {"target": "mail"}),),
    "GET /admin/topology": (_ANY,),
    "GET /admin/topology/check": (_ANY,),
    "GET /admin/topology/route": (Sample(query={"exchange": "shop.events"}),),
    "POST /admin/topology/plan": (Sample((), {"topology": {}}),),
    "GET /admin/me": (_ANY,),
    "GET /admin/keys": (_ANY,),
    "POST /admin/keys": (Sample((), {"name": "ci", "role": "viewer"}),),
    "DELETE /admin/keys/{key}": (_ANY,),
    "GET /admin/audit": (_ANY,),
    "GET /healthz": (_ANY,),
    "GET /readyz": (_ANY,),
    "GET /metrics": (_ANY,),
    "GET /admin/brokers": (_ANY,),
    "GET /admin/brokers/queues": (_ANY,),
    "GET /admin/brokers/metrics": (_ANY,),
}
_STEERING = {
    "pause": (DLQ,),
    "resume": (DLQ, OTHER),
    "cancel": (DLQ,),
    "retry-failures": (DLQ, OTHER),
}
SITE: dict[str, tuple[Sample, ...]] = {
    "GET /working/{work}": (_ANY,),
    "GET /working/{work}/events": (_ANY,),
    "POST /working/{work}/cancel": (_ANY,),
    "GET /": (_ANY,),
    "POST /errors/survey": (_ANY,),
    "GET /errors": (_ANY,),
    "GET /errors/{group}": (_ANY,),
    "GET /search": (_ANY,),
    "GET /search/events": (Sample((DLQ,), query={"in": DLQ}, streams=True),),
    "POST /candidates": (
        Sample((DLQ,), form={"queue": DLQ, "answer": "ignore"}),
        Sample((DLQ, OTHER), form={"queue": DLQ, "answer": "add", "main_queue": OTHER}),
    ),
    "GET /live": (Sample(streams=True),),
    "GET /alive": (_ANY,),
    "GET /queues/{queue}": (_ON_QUEUE,),
    "POST /queues/{queue}/look": (_ON_QUEUE,),
    "POST /queues/{queue}/restore-limit": (_ON_QUEUE,),
    "GET /sessions/{session}": (_ON_QUEUE,),
    "POST /sessions/{session}/renew": (_ON_QUEUE,),
    "POST /sessions/{session}/release": (_ON_QUEUE,),
    "GET /sessions/{session}/messages/{message}": (_ON_QUEUE,),
    "GET /sessions/{session}/messages/{message}/edit": (_ON_QUEUE,),
    "POST /sessions/{session}/messages/{message}/edit": (
        Sample((DLQ,), form={"step": "1"}),
        Sample((DLQ, OTHER), form=_FORM_TO_OTHER | {"step": "review", "headers": "a: b"}),
        Sample((DLQ, OTHER), form=_FORM_TO_OTHER | {"step": "go", "headers": "a: b"}),
    ),
    "GET /sessions/{session}/export": (_ON_QUEUE,),
    "POST /queues/{queue}/export": (_ON_QUEUE,),
    "GET /jobs/{job}/export": (_ON_QUEUE,),
    "POST /queues/{queue}/import": (_ON_QUEUE,),
    "GET /queues/{queue}/groups/{group}": (_ON_QUEUE,),
    "POST /queues/{queue}/groups/{group}/notes": (Sample((DLQ,), form={"text": "known"}),),
    "POST /queues/{queue}/groups/{group}/notes/{note}/remove": (_ON_QUEUE,),
    "POST /queues/{queue}/filters": (Sample((DLQ,), form={"name": "n", "filter": "age>1h"}),),
    "POST /queues/{queue}/filters/remove": (Sample((DLQ,), form={"name": "n"}),),
    "GET /queues/{queue}/re-drive": (_ON_QUEUE,),
    "POST /queues/{queue}/re-drive": (
        Sample((DLQ, MAIN), form={"step": "3", "on": "2", "reason": "test"}),
        Sample((DLQ, OTHER), form=_FORM_TO_OTHER | {"step": "3"}),
        Sample((DLQ, OTHER), form=_FORM_TO_OTHER | {"step": "go"}),
    ),
    "GET /queues/{queue}/discard": (_ON_QUEUE,),
    "POST /queues/{queue}/discard": (Sample((DLQ,), form={"step": "3", "reason": "test"}),),
    "GET /jobs": (_ANY,),
    "GET /jobs/{job}": (_ON_QUEUE,),
    "GET /jobs/{job}/live": (Sample((DLQ,), streams=True),),
    "GET /jobs/{job}/came-back": (_ON_QUEUE,),
    "GET /jobs/{job}/came-back/events": (Sample((DLQ,), streams=True),),
    "POST /jobs/{job}/{verb}": tuple(
        Sample(touches, form={"reason": "test"}, path={"verb": verb})
        for verb, touches in _STEERING.items()
    ),
    "GET /alerts": (_ANY,),
    "POST /alerts/test": (Sample(form={"target": "mail"}),),
    "GET /topology": (_ANY,),
    "GET /topology/rehearse": (Sample((MAIN,), query={"queue": MAIN}),),
    "GET /topology/graph.json": (_ANY,),
    "GET /checks": (_ANY,),
    "POST /notice/read": (_ANY,),
    "GET /you": (_ANY,),
    "POST /keys": (Sample(form={"name": "ci", "role": "viewer"}),),
    "POST /keys/{key}/delete": (_ANY,),
    "GET /audit": (_ANY,),
}
_API_ROWS = {f"{row.method} {row.path}": row for row in (*ENDPOINTS, *BROKERS)}
_PAGE_ROWS = {f"{row.method} {row.path}": row for part in PAGES for row in part.rows}


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller with one role for some queues, here or on another broker."""

    role: Role
    scope: tuple[str, ...]
    broker: str = _BROKERS[0]

    @property
    def claim(self) -> str:
        return f"{self.role} of {self.scope} at {self.broker}"

    @property
    def headers(self) -> dict[str, str]:
        claims = {"iss": "https://id.test", "aud": "hopback", "sub": "caller", "exp": 9e9}
        token = jwt.encode(claims | {"roles": [self.claim]}, SECRET, algorithm="HS256")
        return {"Authorization": f"Bearer {token}", "Sec-Fetch-Site": "same-origin"}


_CALLERS = tuple(
    Caller(role, scope, broker) for broker in _BROKERS for role in Role for scope in _SCOPES
)
_OWNER = Caller(Role.ADMIN, _EVERYTHING)


def _is_allowed(row: AnsweredEndpoint | PageRow, sample: Sample, caller: Caller) -> bool:
    is_page = f"{row.method} {row.path}" in _PAGE_ROWS
    if caller.broker != _BROKERS[0]:
        return row.role is None and (not is_page or row.path == "/you")
    if row.role is None:
        return True
    if caller.role.rank < row.role.rank:
        return False
    if any(rule.is_everywhere for rule in row.queues):
        return caller.scope == _EVERYTHING
    return caller.scope == _EVERYTHING or set(sample.touches) <= set(caller.scope)


@asynccontextmanager
async def _service() -> AsyncIterator[tuple[Admin, dict[str, str]]]:
    """A service with a browse session and a stopped job that re-drives into another team's queue."""
    grants = [
        {"claim": one.claim, "role": str(one.role), "queues": list(one.scope)}
        | {"broker": one.broker}
        for one in _CALLERS
    ]
    jwt_settings = {"issuer": "https://id.test", "audience": "hopback", "secret_env": "JWT_SECRET"}
    limits = {"requests_per_second": 10**6, "burst": 10**6}
    settings = parse_settings(
        {
            "brokers": [{"name": name, "url": f"amqp://{name}.test"} for name in _BROKERS],
            "auth": {"jwt": jwt_settings, "grants": grants},
            "limits": limits,
        },
        {"JWT_SECRET": SECRET},
        "test",
    )
    # The loop guard leaves all of them out, so that a job has failures to retry.
    dead_letters = [dead_letter(number, redrives=3) for number in range(3)]
    async with admin(
        *dead_letters, extra=(Queue(OTHER),), editing=True, settings=settings, name=_BROKERS[0]
    ) as service:
        order = _REDRIVE | {"target": _TO_OTHER}
        job = (
            await service.client.post("/admin/dlq/jobs", json=order, headers=_OWNER.headers)
        ).json()
        assert "id" in job, job
        await service.operations.wait(job["id"])
        opened = await service.client.post(
            f"/admin/dlq/queues/{DLQ}/sessions", json={}, headers=_OWNER.headers
        )
        session = opened.json()["id"]
        messages = await service.client.get(
            f"/admin/dlq/sessions/{session}/messages", headers=_OWNER.headers
        )
        names = {"queue": DLQ, "session": session, "job": job["id"], "work": "none", "key": "none"}
        names |= {"message": messages.json()["items"][0]["id"], "note": "none", "group": "g"}
        yield service, names | {"name": "n"}


async def _ask(
    client: httpx.AsyncClient,
    row: AnsweredEndpoint | PageRow,
    sample: Sample,
    caller: Caller,
    names: dict[str, str],
) -> httpx.Response:
    body = sample.body
    if body is not None and body.get("job"):
        body = body | {"job": names["job"]}
    return await client.request(
        row.method,
        row.path.format(**names | sample.path),
        json=body,
        data=sample.form,
        params=sample.query,
        headers=caller.headers,
    )


def _requests(*, allowed: bool) -> Iterator[tuple[AnsweredEndpoint | PageRow, Sample, Caller]]:
    for rows, samples in ((_API_ROWS, API), (_PAGE_ROWS, SITE)):
        for name, row in rows.items():
            for sample in samples[name]:
                for caller in _CALLERS:
                    if _is_allowed(row, sample, caller) == allowed:
                        yield row, sample, caller


@pytest.mark.parametrize(
    ("rows", "samples"), [(_API_ROWS, API), (_PAGE_ROWS, SITE)], ids=["api", "pages"]
)
def test_every_endpoint_lists_its_queues_and_has_a_sample(
    rows: dict[str, AnsweredEndpoint | PageRow], samples: dict[str, tuple[Sample, ...]]
) -> None:
    assert [name for name, row in rows.items() if not row.queues] == []
    assert sorted(rows) == sorted(samples)


async def test_caller_without_role_scope_or_broker_is_refused_at_every_endpoint() -> None:
    """The service refuses before it changes anything, so one service answers all requests."""
    wrong = []
    async with _service() as (service, names):
        before = replace(service.broker.snapshot(), at=0.0)
        for row, sample, caller in _requests(allowed=False):
            answer = await _ask(service.client, row, sample, caller, names)
            if answer.status_code != 403:
                wrong.append((answer.status_code, row.method, row.path, sample, caller.claim))
        assert replace(service.broker.snapshot(), at=0.0) == before
    assert wrong == []


async def test_caller_with_smallest_sufficient_role_and_scope_is_accepted() -> None:
    """The caller is the one with the smallest role and scope in the table."""
    wrong, seen = [], set[tuple[str, str, str]]()
    async with _service() as (service, names):
        admitted = sorted(
            _requests(allowed=True), key=lambda each: (each[2].role.rank, len(each[2].scope))
        )
        for row, sample, caller in admitted:
            key = (row.method, row.path, repr(sample))
            if (
                sample.streams
                or caller.broker != _BROKERS[0]
                or (caller.scope == _EVERYTHING and sample.touches)
            ):
                continue
            if key in seen:
                continue
            seen.add(key)
            answer = await _ask(service.client, row, sample, caller, names)
            if answer.status_code in (401, 403) or answer.status_code >= 500:
                wrong.append((answer.status_code, row.method, row.path, sample, caller.claim))
    assert wrong == []
    assert len(seen) > 80


@pytest.mark.parametrize("scope", _SCOPES, ids=",".join)
async def test_search_without_queue_is_refused_unless_caller_may_search_one(
    scope: tuple[str, ...],
) -> None:
    caller = Caller(Role.OPERATOR, scope)
    async with _service() as (service, _):
        for answer in (
            await service.client.post(
                "/admin/dlq/search", json={"filter": "id:m-*"}, headers=caller.headers
            ),
            await service.client.get(
                "/search/events", params={"find": "id:m-*"}, headers=caller.headers
            ),
        ):
            if scope == _EVERYTHING or DLQ in scope:
                assert answer.status_code == 200
                assert '"matching":3' in answer.text
            else:
                assert answer.status_code == 403
