"""The pages without a browser: content, refusals and escaped hostile content."""

from __future__ import annotations

import bz2
import gzip
import html
import re
import tracemalloc
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from hopback.broker.declare import declare
from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement
from hopback.designs import DESIGNS
from hopback.message import Message, Properties, Received
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.http import create_app
from hopback.ops.messages.shown_payload import Form, ShownPayload
from hopback.ops.operations import Operations
from hopback.ops.page.rendering import payload_of, visible
from hopback.policy.delays import delay
from hopback.topology.delays import delay_topology
from hopback.topology.model import Binding, Exchange, ExchangeType, Policy, Queue, Topology
from tests.harness.seeded import publish
from tests.unit.ops.admin_service import DLQ, MAIN, admin, dead_letter, settings

_SAME = {"Sec-Fetch-Site": "same-origin"}
_EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'>"


class _Tags(HTMLParser):
    """Every tag of a page, and what would run or load from it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.inline: list[str] = []
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.inline.append(f"{tag} {name}")
            if name in {"src", "href", "action", "formaction"} and re.match(
                r"\s*(?:[a-z]+:|//)", value or "", re.IGNORECASE
            ):
                self.foreign.append(value or "")


def _tags(html: str) -> _Tags:
    found = _Tags()
    found.feed(html)
    return found


async def test_every_page_has_one_heading_and_no_inline_or_foreign_resources() -> None:
    async with admin(dead_letter(1)) as service:
        await service.client.post(
            "/admin/dlq/jobs", json={"kind": "re-drive", "queue": DLQ, "reason": "x"}
        )
        job = (await service.client.get("/admin/dlq/jobs")).json()["items"][0]["id"]
        await service.operations.wait(job)
        paths = [
            "/", f"/queues/{DLQ}", "/jobs", f"/jobs/{job}", "/topology", "/checks", "/audit", "/you",
            f"/queues/{DLQ}/re-drive", f"/queues/{DLQ}/discard",
            "/topology?exchange=shop.events&key=order.x&ask=1",
        ]  # fmt: skip
        for path in paths:
            answer = await service.client.get(path)
            found = _tags(answer.text)
            assert (answer.status_code, found.tags.count("h1")) == (200, 1), path
            assert (found.inline, found.foreign) == ([], []), path


async def test_map_shows_queues_reached_by_routing_key() -> None:
    """It uses the routing rules of the simulator."""
    async with admin() as service:
        some = await service.client.get("/topology?exchange=shop.events&key=order.created&ask=1")
        none = await service.client.get("/topology?exchange=shop.events&key=invoice&ask=1")
        graph = (await service.client.get("/topology/graph.json")).json()["elements"]
        route = await service.client.get(
            "/admin/topology/route", params={"exchange": "shop.events", "routingKey": "order.a.b"}
        )
    assert "1 queue: " in some.text
    assert "No queue." in none.text
    assert route.json()["queues"] == ["orders"]
    kinds = {item["data"]["name"]: item["data"]["kind"] for item in graph if "name" in item["data"]}
    assert (kinds["orders"], kinds[DLQ]) == ("main", "dead-letter")
    edges = {
        (item["data"]["source"], item["data"]["kind"]) for item in graph if "source" in item["data"]
    }
    assert ("x:shop.events", "binding") in edges
    assert any(kind == "dead-letter" for _, kind in edges)


async def test_route_follows_alternate_exchange_of_a_policy() -> None:
    spare = {"alternate-exchange": "amq.fanout"}
    bound = Topology(
        "bound",
        exchanges=(Exchange("orders.direct", ExchangeType.DIRECT),),
        bindings=(Binding("amq.fanout", MAIN, ""),),
    )
    async with admin() as service:
        connection = await service.broker.connect("declaring")
        await declare(connection, bound)
        await connection.close()
        policy = Policy("spare", r"^orders\.", spare, apply_to="exchanges")
        await EmbeddedManagement(service.broker).put_policy("/", policy)
        route = {"exchange": "orders.direct", "routingKey": "unbound"}
        found = await service.client.get("/admin/topology/route", params=route)
    assert found.json()["queues"] == [MAIN]


async def test_map_shows_delay_queues_as_one_node() -> None:
    """The table lists the queues."""
    async with admin() as service:
        connection = await service.broker.connect("declaring")
        await declare(connection, delay_topology("1h"))
        await publish(service.broker, delay(dead_letter(7), 9_000, 9_000))
        await connection.close()
        page = (await service.client.get("/topology")).text
        graph = (await service.client.get("/topology/graph.json")).json()["elements"]
    assert "1 message to be sent later waits in 12 queues of delays, for up to 1h8m15s" in page
    assert "hopback.delay.level-03" in page
    names = {item["data"].get("name"): item["data"].get("label") for item in graph}
    assert names["hopback.delay"] == "queues of delays\n1 message, up to 1h8m15s"
    assert not any("level-" in str(name) for name in names)
    edges = {(item["data"].get("source"), item["data"].get("target")) for item in graph}
    assert ("q:hopback.delay", "x:hopback.delay.due") in edges


async def test_redrive_works_by_forms_without_scripts() -> None:
    async with admin(*(dead_letter(n) for n in range(3))) as service:
        client = service.client
        opened = await client.post(f"/queues/{DLQ}/look", data={"limit": "10", "how": "plain"})
        url = opened.headers["location"]
        page = (await client.get(url)).text
        assert "LookupError" in page
        session = url.rpartition("/")[2].partition("?")[0]
        base = {"session": session, "filter": "error:LookupError"}
        act = f"/queues/{DLQ}/re-drive"
        first = await client.get(act, params=base)
        assert "of the 3 messages that you hold" in first.text
        second = await client.post(act, data={**base, "step": "2", "on": "1"})
        assert "Ramp: " in second.text
        without = await client.post(act, data={**base, "step": "3", "on": "2"})
        assert "expected a reason" in without.text
        third = await client.post(act, data={**base, "step": "3", "on": "2", "reason": "fixed"})
        assert "that match error:LookupError. New messages" in third.text
        assert "Re-drive 3 messages" in third.text
        hidden = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', third.text)
        fields = {name: html.unescape(value) for name, value in hidden}
        assert fields["ramp"] == "0", "a box that was not ticked stays so"
        began = await client.post(act, data={**fields, "step": "go"})
        assert began.status_code == 303
        job = began.headers["location"].rpartition("/")[2]
        ended = await service.operations.wait(job)
        again = await client.post(act, data={**fields, "step": "go"})
        assert again.headers["location"] == began.headers["location"]
    assert ended.counts.done == 3


async def test_discard_with_wrong_queue_name_shows_review_again() -> None:
    async with admin(dead_letter(1)) as service:
        fields = {"on": "3", "step": "go", "reason": "x", "export": "0", "confirm": "orders"}
        answer = await service.client.post(f"/queues/{DLQ}/discard", data=fields)
        assert len(service.broker.snapshot().queue(DLQ).ready) == 1
        assert "type the queue" in answer.text
        good = await service.client.post(f"/queues/{DLQ}/discard", data={**fields, "confirm": DLQ})
        await service.operations.wait(good.headers["location"].rpartition("/")[2])
        assert service.broker.snapshot().queue(DLQ).ready == ()


async def test_errors_404_and_403_are_pages_with_link() -> None:
    """The requested path is escaped."""
    async with admin(dead_letter(1), settings=settings(), link="open") as service:
        await service.client.get("/login?token=open")
        lost = await service.client.get("/queues/%3Cscript%3E")
        assert (lost.status_code, "<script>alert" in lost.text) == (404, False)
        assert "<h1>Not found" in lost.text
        told = await service.client.get("/jobs?told=%3Cb%3Esigned-out")
        assert "signed-out" not in told.text
        foreign = await service.client.post(f"/queues/{DLQ}/look", headers={"Origin": "http://x"})
        assert foreign.status_code == 403


def _hostile(body: bytes, **properties: str) -> Message:
    known = dead_letter(1, error=_EVIL, body=body)
    headers = {**known.properties.headers, _EVIL[:100]: _EVIL, "x-rtl": "abc\u202ecba"}
    changed = replace(known.properties, headers=headers, type=_EVIL, message_id=_EVIL)
    return Message("", DLQ, body, replace(changed, **properties))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "hostile",
    [
        _hostile(_EVIL.encode()),
        _hostile(b'{"a": "</pre><script>alert(1)</script>"}'),
        _hostile(b"\x1b[31mred\x1b[0m \x07 \x9b2J"),
        _hostile("safe\u202egnp.exe\u2066".encode()),
        _hostile(bytes(range(256))),
        _hostile(b"\xff\xfe\xfd" * 100),
        _hostile(b"x" * 8 * 1024 * 1024),
        _hostile(b"[" * 100_000),
        _hostile(gzip.compress(b"\0" * 20_000_000), content_encoding="gzip"),
        _hostile(zlib.compress(b"a" * 20_000_000), content_encoding="deflate"),
        _hostile(b"no gzip", content_encoding="gzip"),
        _hostile(b""),
    ],
    ids=[
        "html", "json", "ansi", "rtl", "bytes", "utf8", "large", "deep", "gzip", "zlib", "liar", "empty"
    ],
)  # fmt: skip
async def test_hostile_content_is_escaped_on_every_page(hostile: Message) -> None:
    """No tag, control character or direction mark reaches the page, and its size is bounded."""
    async with admin(hostile) as service:
        session = await service.session()
        item = (await service.client.get(f"{session['url']}/messages")).json()["items"][0]
        page = f"/sessions/{session['id']}"
        listed = await service.client.get(page)
        shown = [
            await service.client.get(f"{page}/messages/{item['id']}?form={form}")
            for form in ("pretty", "raw", "hex")
        ]
        api = await service.client.get(f"{session['url']}/messages/{item['id']}")
        raw = await service.client.get(f"{session['url']}/messages/{item['id']}/body")
    assert raw.content == hostile.body
    assert (raw.headers["content-type"], api.status_code) == ("application/octet-stream", 200)
    for answer in (listed, *shown):
        assert answer.status_code == 200
        assert len(answer.text) < 1_500_000
        assert "<img" not in answer.text.replace('<img src="/static/mark.svg"', "")
        assert not re.search(
            "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", answer.text
        )
        assert (_tags(answer.text).inline, _tags(answer.text).foreign) == ([], [])


def test_control_and_direction_characters_are_spelled_out() -> None:
    assert visible("a\x1b[0m\u202eb\nc") == "a␛[0m⟨U+202E⟩b␊c"
    assert visible("a\tb\nc", lines=True) == "a\tb\nc"
    assert visible("žluťoučký 日本 \ud800") == "žluťoučký 日本 \\ud800"


def test_payload_is_shown_as_json_text_or_hex() -> None:
    """A note names the decompression."""

    def shown(body: bytes, form: Form, **said: Any) -> ShownPayload:
        return payload_of(Received("q", "", "q", body, Properties(**said)), form)

    assert shown(b'{"a":[1]}', Form.PRETTY).text == '{\n  "a": [\n    1\n  ]\n}'
    assert shown(b"plain", Form.PRETTY).form is Form.RAW
    assert shown(b"\xff", Form.RAW).text.startswith("00000000  ff")
    packed = shown(gzip.compress(b'{"a":1}'), Form.PRETTY, content_encoding="gzip")
    assert (packed.text, packed.note) == ('{\n  "a": 1\n}', "unpacked from gzip")
    packed = shown(
        bz2.compress(b"\x81\xa1a\xc4\x01\xff"),
        Form.PRETTY,
        content_type="application/x-msgpack",
        headers={"compression": "application/x-bz2"},
    )
    assert packed.text == '{\n  "a": "\\\\xff"\n}'
    assert packed.note == "unpacked from application/x-bz2; as JSON, from MessagePack"
    damaged = shown(b"{}", Form.RAW, headers={"compression": "application/x-lzma"})
    assert (damaged.text, damaged.note) == (
        "{}",
        "unchanged: declared as application/x-lzma, but is not",
    )


async def test_message_with_thousands_of_headers_shows_first_ones() -> None:
    """Hopback's headers are among them. Page and API count the others."""
    many = replace(
        dead_letter(1).properties,
        headers={**{f"{n:x}": None for n in range(20_000)}, **dead_letter(1).properties.headers},
    )
    async with admin(replace(dead_letter(1), properties=many)) as service:
        session = await service.session()
        (item,) = (await service.client.get(f"{session['url']}/messages")).json()["items"]
        page = await service.client.get(f"/sessions/{session['id']}/messages/{item['id']}")
        assert "19,505 more in an export" in page.text
        assert "hopback-failure" in page.text
        assert len(page.text) < 300_000
        found = (await service.client.get(f"{session['url']}/messages/{item['id']}")).json()
        assert (len(found["headers"]), found["moreHeaders"]) == (500, 19_505)


async def test_session_rows_show_the_field_of_the_grouping() -> None:
    async with admin(dead_letter(7), dead_letter(8)) as service:
        session = await service.session()
        page = await service.client.get(f"/sessions/{session['id']}?by=payload.order.id")
        plain = await service.client.get(f"/sessions/{session['id']}")
    names = re.compile(r'<a class="name" href="/sessions/[^"]+/messages/[^"]+">([^<]+)</a>')
    assert names.findall(page.text) == ["7", "8"]
    assert names.findall(plain.text) == ["OrderCreated"] * 2


async def test_page_with_thousands_of_groups_shows_largest_ones() -> None:
    """Page and API count the others."""
    messages = (dead_letter(n, error=f"Error{n}") for n in range(1100))
    async with admin(*messages) as service:
        session = await service.session(limit=1100)
        page = await service.client.get(f"/sessions/{session['id']}?by=error")
        assert "and 1,000 smaller groups" in page.text
        found = (await service.client.get(f"{session['url']}/groups?by=error")).json()
        assert (len(found["items"]), found["more"], found["matching"]) == (1000, 100, 1100)


async def test_page_reports_bodies_too_large_for_filter() -> None:
    body = b'{"a": "' + b"x" * (1024 * 1024) + b'"}'
    async with admin(dead_letter(1, body=body)) as service:
        session = await service.session()
        page = await service.client.get(f"/sessions/{session['id']}?filter=payload.a:x*")
        assert "1 not checked" in page.text
        found = (await service.client.get(f"{session['url']}/messages?filter=payload.a:x*")).json()
        assert (found["matching"], found["notLookedInto"]) == (0, 1)


def test_deep_json_is_indented_only_up_to_display_limit() -> None:
    """With indentation, 400 levels around many numbers would take hundreds of megabytes."""
    body = b"[" * 400 + b",".join([b"1"] * 200_000) + b"]" * 400
    tracemalloc.start()
    payload = payload_of(Received("q", "", "q", body, Properties()), Form.PRETTY)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "cut" in payload.note
    assert peak < 20_000_000


@pytest.mark.parametrize(
    "path",
    ["/topology", "/topology/graph.json", "/checks", "/admin/topology", "/admin/topology/check"],
)
async def test_every_design_is_shown_without_management_api(path: str) -> None:
    """Only declarations are known. All five designs are present, one of them twice."""
    declared = [design.build() for design in DESIGNS.values()]
    broker = EmbeddedBroker()
    async with Operations(ManagedBroker(broker, topologies=declared)) as operations:
        app = create_app(operations, first_read_s=None)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    names = {queue.name for topology in declared for queue in topology.queues}
    if path in ("/topology", "/admin/topology"):
        assert [name for name in names if name not in answer.text] == []


async def test_review_and_dry_run_warn_of_target_without_consumers() -> None:
    async with admin(dead_letter(1)) as service:
        form = {"step": "3", "reason": "repaired", "target": "", "on": "2"}
        review = await service.client.post(f"/queues/{DLQ}/re-drive", data=form, headers=_SAME)
        assert "orders has 0 consumers: messages wait there" in review.text
        asked = {"kind": "re-drive", "queue": DLQ, "reason": "repaired", "dryRun": True}
        plan = (await service.client.post("/admin/dlq/jobs", json=asked)).json()
        assert plan["reaches"] == [{"queue": "orders", "consumers": 0, "messages": 0}]


async def test_large_topology_shows_first_rows_and_map_around_queue() -> None:
    names = [f"team{n:03}" for n in range(300)]
    queues = tuple(Queue(f"{name}{end}") for name in names for end in ("", ".dlq"))
    async with admin(replace(dead_letter(1), routing_key="team123.dlq"), extra=queues) as service:
        page = (await service.client.get("/topology")).text
        found = (await service.client.get("/topology", params={"find": "team29"})).text
        graph = (await service.client.get("/topology/graph.json")).json()
        focused = await service.client.get("/topology/graph.json", params={"focus": "team007.dlq"})
    assert "The first 200 of 603 queues." in page
    assert page.count('data-label="Queue"') == 200
    assert re.findall(r'id="q-(team29\d)"', found) == [f"team{n}" for n in range(290, 300)]
    assert "The first" not in found
    nodes = [item["data"] for item in graph["elements"] if "name" in item["data"]]
    assert (len(nodes), graph["total"]) == (200, 604)
    assert nodes[0]["name"] == "team123.dlq"
    assert [item["data"].get("name") for item in focused.json()["elements"]] == ["team007.dlq"]


async def test_message_list_begins_with_error_and_time() -> None:
    async with admin(dead_letter(1, error="CardDeclined")) as service:
        session = await service.session()
        page = (await service.client.get(f"/sessions/{session['id']}")).text
    table = page[page.index('<table class="rows letters">') :]
    labels = re.findall(r'data-label="(\w+)"', table)
    assert labels == ["Error", "Failed", "Message", "Attempts", "Size"]
    heads = re.findall(r'<th scope="col"[^>]*>(\w+)</th>', table)
    assert heads == labels


def _grouped(number: int, error: str, kind: str, tag: str | None) -> Message:
    known = dead_letter(number, error)
    headers = (
        known.properties.headers if tag is None else {**known.properties.headers, "x-tag": tag}
    )
    return replace(known, properties=replace(known.properties, type=kind, headers=headers))


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("error", {"asyncio.TimeoutError": 2, "LookupError": 2}),
        ("type", {"(none)": 2, "aXb": 1, 'q"\\': 1}),
        ("header.x-tag", {"aXb": 1}),
        ("fingerprint", {"TimeoutError": 1, "asyncio.TimeoutError": 2, "LookupError": 2}),
    ],
)
async def test_group_has_buttons_only_if_a_filter_selects_exactly_its_messages(
    by: str, expected: dict[str, int]
) -> None:
    """`error:TimeoutError` also matches asyncio.TimeoutError, and values can contain `*` or be cut."""
    messages = (
        _grouped(0, "TimeoutError", "", "a*b"),
        _grouped(1, "asyncio.TimeoutError", "", "aXb"),
        _grouped(2, "asyncio.TimeoutError", "a*b", ""),
        _grouped(3, "LookupError", "aXb", "x" * 300),
        _grouped(4, "LookupError", 'q"\\', None),
    )
    async with admin(*messages) as service:
        session = await service.session()
        page = await service.client.get(f"/sessions/{session['id']}", params={"by": by})
        groups = re.findall(r'<h3>(.*?)</h3>.*?<div class="do">(.*?)</li>', page.text, re.DOTALL)
        found = {}
        for name, buttons in groups:
            shown = re.search(r'filter=([^"#]*)#messages">Show<', buttons)
            assert (shown is not None) == ("Re-drive" in buttons) == ("Discard" in buttons)
            if shown is not None:
                asked = {"filter": unquote(html.unescape(shown[1]))}
                answer = await service.client.get(f"{session['url']}/messages", params=asked)
                found[html.unescape(name)] = answer.json()["matching"]
    assert found == expected


async def test_error_page_has_no_buttons_if_no_filter_selects_only_the_error() -> None:
    known = dead_letter(1)
    record = str(known.properties.headers["hopback-failure"])
    headers = {
        **known.properties.headers,
        "hopback-failure": re.sub(r'"fingerprint":"\w+"', '"fingerprint":"any*"', record),
    }
    changed = replace(known, properties=replace(known.properties, headers=headers))
    async with admin(changed, dead_letter(2)) as service:
        await service.client.post("/errors/survey")
        page = await service.client.get("/errors/any*")
    assert "No filter matches only this error." in page.text
    assert "Re-drive…" not in page.text
