"""Several brokers in one service: one list, one path per broker, and isolation between them."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import hopback.ops.page
from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker
from hopback.broker.embedded.management import EmbeddedManagement
from hopback.broker.named_brokers import BadBrokers, name_brokers
from hopback.clock import ManualClock
from hopback.errors import ConnectionFailed, NoSuch
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.roles import Grant, Role
from hopback.ops.http.app import FIRST_READ_S, create_app
from hopback.ops.http.keys import new_key
from hopback.ops.http.settings import BadSettings, parse_settings
from hopback.ops.jobs.journal import MemoryJournal
from hopback.ops.operations import Operations
from tests.harness.seeded import publish
from tests.unit.ops.admin_service import DLQ, NOW, dead_letter, topology

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hopback.broker.embedded import EmbeddedConnection

_TEMPLATES = Path(hopback.ops.page.__file__).with_name("templates")


def test_every_link_of_template_contains_broker_base() -> None:
    """Home, sign-in, sign-out and static files do not."""
    bare = re.compile(
        r'(?:href|action|formaction|hx-\w+|data-\w+)="/(?!"|static/|login|logout)[^"]*'
    )
    found = {
        each.name: bare.findall(each.read_text())
        for each in _TEMPLATES.glob("*.html")
        if bare.search(each.read_text())
    }
    assert found == {}


def _key(name: str, role: str, broker: str = "") -> tuple[str, dict[str, str]]:
    """An API key with its settings entry."""
    secret, key = new_key(name, Grant(Role(role)), expires=None, made_by="", now=0.0)
    said = {"name": name, "hash": key.hash, "role": role}
    return secret, said | ({"broker": broker} if broker else {})


_ANN, _ANN_SAID = _key("ann", "operator")
_BOB, _BOB_SAID = _key("bob", "operator", "staging")
_EVE, _EVE_SAID = _key("eve", "admin", "lab:*")
_ADA, _ADA_SAID = _key("ada", "admin", "*")
_SETTINGS: dict[str, Any] = {
    "brokers": [
        {"name": "prod", "url": "amqp://prod.test"},
        {"name": "staging", "url": "amqp://staging.test"},
        {"name": "lab", "url": "amqp://lab.test", "vhosts": ["a/b"]},
    ],
    "auth": {"keys": [_ANN_SAID, _BOB_SAID, _EVE_SAID, _ADA_SAID]},
}
_NAMES = ("prod", "staging", "lab:a/b")
_LAB = "/brokers/lab:a%2Fb"
_SAME = {"Sec-Fetch-Site": "same-origin"}


@dataclass(frozen=True, slots=True)
class _Several:
    """The service over three brokers, each with a dead letter in a queue of the same name."""

    client: httpx.AsyncClient
    operations: dict[str, Operations]
    brokers: dict[str, _Broker]
    clock: ManualClock

    async def ask(self, key: str, method: str, path: str, **more: Any) -> httpx.Response:
        """A request with a key."""
        headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}
        return await self.client.request(method, path, headers=headers, **more)

    async def page(self, key: str, path: str) -> httpx.Response:
        """A page, requested by a caller that signed in with a key."""
        await self.client.post("/login", data={"secret": key}, headers=_SAME)
        return await self.client.get(path)

    async def redrive(self, key: str, prefix: str) -> dict[str, Any]:
        """A job that was begun by the API and has ended."""
        asked = {"kind": "re-drive", "queue": DLQ, "reason": "repaired"}
        answer = await self.ask(key, "POST", f"{prefix}/admin/dlq/jobs", json=asked)
        assert answer.status_code == 202, answer.text
        job: dict[str, Any] = answer.json()
        for operations in self.operations.values():
            with suppress(NoSuch):
                await operations.wait(job["id"])
        return job


@asynccontextmanager
async def _several(*, down: str = "", first_read_s: float | None = None) -> AsyncIterator[_Several]:
    """Three brokers in one journal. `down` names one that refuses every connection."""
    clock, journal, declared = ManualClock(NOW), MemoryJournal(), topology()
    brokers = {name: _Broker(name, is_down=name == down) for name in _NAMES}
    managed = [
        ManagedBroker(
            broker,
            name=name,
            management=EmbeddedManagement(broker),
            topologies=(declared,),
            clock=clock,
        )
        for name, broker in brokers.items()
    ]
    names = [each.journal_name for each in managed]
    served = []
    async with AsyncExitStack() as stack:
        for number, broker in enumerate(brokers.values()):
            if not broker.is_down:
                connection = await broker.connect("declaring")
                await declare(connection, declared)
                await connection.close()
                await publish(broker, *(dead_letter(each) for each in range(number + 1)))
            operations = Operations(
                managed[number], journal=journal, beside=names, is_first=not number
            )
            served.append(await stack.enter_async_context(operations))
        settings = parse_settings(_SETTINGS, {}, "test")
        app = create_app(*served, settings=settings, environment={}, first_read_s=first_read_s)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
        await stack.enter_async_context(client)
        yield _Several(client, {each.broker.name: each for each in served}, dict(brokers), clock)


class _Broker(EmbeddedBroker):
    """An embedded broker with a separate address, which can refuse connections."""

    def __init__(self, name: str, *, is_down: bool) -> None:
        super().__init__()
        self.name = name
        self.is_down = is_down
        self.answers = asyncio.Event()
        self.answers.set()

    @property
    def address(self) -> str:
        """Where it would be."""
        return f"amqp://{self.name}.test"

    async def connect(self, name: str = "hopback") -> EmbeddedConnection:
        """A connection when `answers` is set, unless it is away."""
        await self.answers.wait()
        if self.is_down:
            raise ConnectionFailed(f"{self.address}: connection refused")
        return await super().connect(name)


async def test_first_page_lists_other_brokers_while_one_is_being_read() -> None:
    async with _several(first_read_s=FIRST_READ_S) as several:
        several.brokers[_NAMES[2]].answers.clear()
        for name in _NAMES[:2]:
            await several.ask(_ADA, "GET", f"/brokers/{name}/admin/dlq/overview")
        partly = await several.page(_ADA, "/")
        assert "3 dead letters in 2 of 2 queues" in partly.text
        assert "1 of 3 brokers is being read for the first time" in partly.text
        assert "does not answer" not in partly.text
        several.brokers[_NAMES[2]].answers.set()
        await several.ask(_ADA, "GET", f"{_LAB}/admin/dlq/overview")
        whole = await several.page(_ADA, "/")
        assert "6 dead letters in 3 of 3 queues" in whole.text
        assert "being read" not in whole.text


async def test_first_page_lists_queues_of_all_granted_brokers() -> None:
    """Each row has its broker and links to that broker's pages."""
    async with _several() as several:
        whole = await several.page(_ADA, "/")
        assert "6 dead letters in 3 of 3 queues" in whole.text
        for prefix in ("/brokers/prod", "/brokers/staging", _LAB):
            assert f'href="{prefix}/queues/{DLQ}"' in whole.text
        part = await several.page(_BOB, "/")
        assert "2 dead letters in 1 of 1 queues" in part.text
        assert ("prod" in part.text, "lab:" in part.text) == (False, False)
        one = await several.page(_ADA, f"{_LAB}/")
        assert "3 dead letters in 1 of 1 queues" in one.text
        assert f'href="{_LAB}/queues/{DLQ}"' in one.text
        found = await several.page(_ADA, "/?find=stag")
        assert ('href="/brokers/staging/queues' in found.text, "prod/queues" in found.text) == (
            True, False,
        )  # fmt: skip


async def test_paths_without_broker_name_use_first_broker() -> None:
    """The responses equal those below its name except for the paths in them."""
    async with _several() as several:
        for path in (
            f"/admin/dlq/queues/{DLQ}", "/admin/dlq/overview", "/admin/me",
            "/admin/topology", "/admin/topology/check", "/admin/keys", "/metrics", "/readyz",
        ):  # fmt: skip
            bare = await several.ask(_ADA, "GET", path)
            named = await several.ask(_ADA, "GET", f"/brokers/prod{path}")
            assert (bare.status_code, bare.content) == (200, named.content), path
        job = await several.redrive(_ADA, "")
        assert job["url"] == f"/admin/dlq/jobs/{job['id']}"
        named = await several.ask(_ADA, "GET", f"/brokers/prod/admin/dlq/jobs/{job['id']}")
        assert named.json()["url"] == f"/brokers/prod{job['url']}"


@pytest.mark.parametrize(
    ("key", "own", "others"),
    [
        (_ANN, "", ["/brokers/staging", _LAB]),
        (_BOB, "/brokers/staging", ["", "/brokers/prod", _LAB]),
        (_EVE, _LAB, ["", "/brokers/prod", "/brokers/staging"]),
    ],
    ids=["operator of the first", "operator of one", "admin of a pattern"],
)
async def test_role_for_one_broker_is_refused_at_others(
    key: str, own: str, others: list[str]
) -> None:
    """API and pages return 403 and change no state."""
    reads = [
        f"/admin/dlq/queues/{DLQ}",
        "/admin/dlq/overview",
        "/admin/topology",
        "/admin/dlq/jobs",
    ]
    pages = [f"/queues/{DLQ}", "/jobs", "/topology", "/checks", f"/queues/{DLQ}/re-drive"]
    asked = {"kind": "re-drive", "queue": DLQ, "reason": "repaired"}
    async with _several() as several:
        boss = await several.ask(_ADA, "POST", f"{_LAB}/admin/dlq/queues/{DLQ}/sessions", json={})
        for prefix in others:
            for path in reads:
                answer = await several.ask(key, "GET", f"{prefix}{path}")
                assert answer.status_code == 403, (prefix, path)
            for path, body in (("jobs", asked), (f"queues/{DLQ}/sessions", {})):
                answer = await several.ask(key, "POST", f"{prefix}/admin/dlq/{path}", json=body)
                assert answer.status_code == 403, (prefix, path)
            for path in pages:
                assert (await several.page(key, f"{prefix}{path}")).status_code == 403, path
            job = (await several.redrive(_ADA, prefix))["id"] if "prod" not in prefix else ""
            for base in (own, prefix):  # nor by the way of one's own broker
                for verb in ("pause", "cancel", "resume") if job else ():
                    path = f"{base}/admin/dlq/jobs/{job}/{verb}"
                    answer = await several.ask(key, "POST", path)
                    assert answer.status_code == (404 if base == own else 403), path
        if own != _LAB:
            session = boss.json()["id"]
            there = await several.ask(key, "GET", f"{own}/admin/dlq/sessions/{session}")
            assert there.status_code == 404
        assert (await several.ask(key, "GET", f"{own}{reads[0]}")).status_code == 200
        assert (await several.page(key, f"{own}{pages[0]}")).status_code == 200


async def test_jobs_audit_and_keys_are_listed_by_broker() -> None:
    async with _several() as several:
        job = await several.redrive(_ADA, "/brokers/staging")
        assert job["url"] == f"/brokers/staging/admin/dlq/jobs/{job['id']}"
        events = await several.ask(_ADA, "GET", f"{job['url']}/events")
        assert f'"url":"{job["url"]}"' in events.text
        made = await several.ask(
            _ADA, "POST", f"{_LAB}/admin/keys", json={"name": "robot", "role": "viewer"}
        )
        robot, secret = made.json()["key"]["id"], made.json()["secret"]
        for prefix, jobs, own in (("", 0, 0), ("/brokers/staging", 1, 0), (_LAB, 0, 1)):
            listed = await several.ask(_ADA, "GET", f"{prefix}/admin/dlq/jobs")
            assert listed.json()["total"] == jobs
            alone = await several.ask(_ADA, "GET", f"{prefix}/admin/dlq/jobs/{job['id']}")
            assert alone.status_code == (200 if jobs else 404)
            audit = await several.ask(_ADA, "GET", f"{prefix}/admin/audit")
            actions = {entry["action"] for entry in audit.json()["items"]}
            assert ({"job.start", "job.end"} <= actions, "key.create" in actions) == (
                bool(jobs), bool(own),
            )  # fmt: skip
            keys = (await several.ask(_ADA, "GET", f"{prefix}/admin/keys")).json()["items"]
            assert (robot in {key["id"] for key in keys}) == bool(own)
            seen = await several.ask(secret, "GET", f"{prefix}/admin/dlq/overview")
            assert seen.status_code == (200 if own else 403)
            gone = await several.ask(_ADA, "DELETE", f"{prefix}/admin/keys/{robot}")
            assert gone.status_code == (204 if own else 404)


async def test_unreachable_broker_does_not_affect_pages_of_others() -> None:
    """The list, its own pages and the metrics report it as down."""
    async with _several(down="staging") as several:
        whole = await several.page(_ADA, "/")
        assert whole.status_code == 200
        assert "Broker staging does not answer" in whole.text
        assert f'href="{_LAB}/queues/{DLQ}"' in whole.text
        assert (await several.page(_ADA, f"{_LAB}/queues/{DLQ}")).status_code == 200
        assert (await several.page(_ADA, f"/brokers/staging/queues/{DLQ}")).status_code == 503
        answers = [
            (await several.ask(_ADA, "GET", f"{prefix}/readyz")).status_code
            for prefix in ("", "/brokers/staging", _LAB)
        ]
        assert answers == [200, 503, 200]
        listed = (await several.ask(_ADA, "GET", "/admin/brokers")).json()["items"]
        assert [
            (each["name"], each["path"], each["ready"], each["messages"]) for each in listed
        ] == [
            ("prod", "/brokers/prod", True, 1),
            ("staging", "/brokers/staging", False, 0),
            ("lab:a/b", _LAB, True, 3),
        ]
        metrics = (await several.ask(_ADA, "GET", "/admin/brokers/metrics")).text
        assert 'hopback_admin_broker_up{broker="staging"} 0' in metrics
        assert f'hopback_dead_letters{{broker="lab:a/b",queue="{DLQ}"}} 3' in metrics


async def test_api_lists_queues_of_all_granted_brokers_by_depth() -> None:
    async with _several() as several:
        whole = (await several.ask(_ADA, "GET", "/admin/brokers/queues?limit=2")).json()
        found = [(each["broker"], each["queue"]["messages"]) for each in whole["items"]]
        assert (found, whole["total"]) == ([("lab:a/b", 3), ("staging", 2)], 3)
        part = (await several.ask(_BOB, "GET", "/admin/brokers/queues")).json()
        assert [each["broker"] for each in part["items"]] == ["staging"]
        document = (await several.client.get("/openapi.json")).json()
        assert document["servers"][1]["variables"]["broker"]["enum"] == list(_NAMES)


async def test_unknown_broker_name_is_404() -> None:
    """Known names are found in encoded form too."""
    async with _several() as several:
        for path in (
            "/brokers/nope/admin/dlq/overview",
            "/brokers/",
            "/brokers",
            "/brokers/prod/x",
        ):
            assert (await several.ask(_ADA, "GET", path)).status_code == 404, path
        for name in ("lab%3Aa%2Fb", "lab:a%2fb", "%6Cab:a%2Fb"):
            answer = await several.ask(_ADA, "GET", f"/brokers/{name}/admin/dlq/overview")
            assert (answer.status_code, answer.json()["total"]) == (200, 1), name


@pytest.mark.parametrize(
    ("brokers", "keys", "said"),
    [
        ([{"name": "a:b", "url": "amqp://x"}], [], r"pattern|name"),
        ([{"name": "a"}], [], "either url or url_env, got neither"),
        ([{"name": "a", "url": "amqp://u:secret@x"}], [], "no password in url"),
        ([{"name": "a", "url_env": "NOPE"}], [], "in NOPE, it is not set"),
        ([{"name": "a", "url": "http://x"}], [], "expected amqp://"),
        ([{"name": "a", "url": "amqp://x"}] * 2, [], "'a' twice"),
        ([{"name": "a", "url": "amqp://x/v", "vhosts": ["w"]}], [], "got both"),
        ([{"name": "a", "url": "amqp://x"}], [_BOB_SAID], r"\(a\), got 'staging'"),
        ([], [_BOB_SAID], r"no \[\[brokers\]\]\), got 'staging'"),
    ],
)  # fmt: skip
def test_invalid_broker_settings_are_refused_without_password(
    brokers: list[dict[str, Any]], keys: list[dict[str, str]], said: str
) -> None:
    def read() -> None:
        found = parse_settings({"brokers": brokers, "auth": {"keys": keys}}, {}, "file")
        name_brokers(found.brokers, {}, "file")

    with pytest.raises((BadSettings, BadBrokers), match=said) as refused:
        read()
    assert "secret" not in str(refused.value)


async def test_ended_session_links_back_to_its_broker() -> None:
    async with _several() as several:
        lost = await several.page(_BOB, f"/brokers/staging/sessions/gone?queue={DLQ}")
    assert lost.status_code == 404
    assert "Browse session ended" in lost.text
    assert f'href="/brokers/staging/queues/{DLQ}#look"' in lost.text
