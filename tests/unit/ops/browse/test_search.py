"""Free-text search through whole queues, and pages anywhere in a queue."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
import zstandard

from hopback.errors import BadFilter, BadRequest, NoSuch, UnsafeOperation
from hopback.message import Message, Properties, Received
from hopback.ops.contract.requests import Selection, SessionRequest
from hopback.ops.contract.search import SearchRequest
from hopback.ops.messages.filters import Judgement, parse_filter
from hopback.testing import in_virtual_time
from hopback.version import BrokerVersion
from tests.unit.ops.shop import DLQ, MAIN, Shop, open_shop, properties, redrive

if TYPE_CHECKING:
    from hopback.ops.contract.search import SearchHit, SearchProgress

_XML = '<order xmlns="urn:x"><customer id="C-01234">Jürgen</customer></order>'
_BODIES = {
    "json": b'{"customer": "C-01234", "name": "J\\u00fcrgen"}',
    "xml": _XML.encode(),
    "utf-16": _XML.encode("utf-16"),
    "gzip": gzip.compress(_XML.encode()),
    "zstd": zstandard.ZstdCompressor().compress(_XML.encode()),
}


@pytest.mark.parametrize(
    ("form", "word"),
    [
        *((form, word) for form in _BODIES for word in ("C-01234", "c-01234")),
        # Of UTF-16 only the ASCII letters are compared without their case.
        *((form, "JÜRGEN") for form in _BODIES if form != "utf-16"),
    ],
)
def test_word_is_found_in_json_xml_utf16_gzip_and_zstd(form: str, word: str) -> None:
    """Case is ignored, and escaped letters of JSON are decoded."""
    delivery = Received("q", "", "q", _BODIES[form], Properties())
    assert parse_filter(word).words_in(delivery) is Judgement.MATCHES
    assert parse_filter("C-99999").words_in(delivery) is Judgement.DIFFERS


def test_word_is_found_in_headers_properties_and_routing_key() -> None:
    said = Properties(headers={"x-tenant": "Acme"}, correlation_id="corr-77")
    delivery = Received("q", "", "orders.eu.new", b"\x00\xff", said)
    for word in ("acme", "CORR-77", "orders.eu", '"x-tenant"'):
        assert parse_filter(word).words_in(delivery) is Judgement.MATCHES, word


def test_compression_bomb_is_reported_as_not_searched() -> None:
    """A body that would grow to 1 GiB is decompressed only up to the limit."""
    bomb = gzip.compress(b"a" * 50_000_000)
    delivery = Received("q", "", "q", bomb, Properties())
    assert parse_filter("needle").words_in(delivery) is Judgement.NOT_LOOKED_INTO


@pytest.mark.parametrize("text", ["reason=rejected", "a>b", "nosuch:1", '"open'])
def test_mistyped_filter_term_is_refused(text: str) -> None:
    """A quoted term is searched as text."""
    with pytest.raises(BadFilter):
        parse_filter(text)


async def _fill(shop: Shop, count: int) -> None:
    await shop.publish(
        Message("", DLQ, b'{"customer": "C-%05d"}' % number, properties(f"m{number}"))
        for number in range(count)
    )


async def _search(shop: Shop, request: SearchRequest) -> tuple[list[SearchHit], SearchProgress]:
    hits: list[SearchHit] = []
    async for progress in shop.operations.search(request):
        hits.extend(progress.hits)
    return hits, progress


@in_virtual_time
async def test_message_beyond_session_is_found_opened_and_redriven() -> None:
    """It is found by a word and opened by its position."""
    async with open_shop() as shop:
        await _fill(shop, 3000)
        hits, last = await _search(shop, SearchRequest("C-02950"))
        assert [(hit.dead_letter.place, hit.dead_letter.queue) for hit in hits] == [(2951, DLQ)]
        assert '"C-02950"' in hits[0].excerpt
        assert (last.seen, last.total, last.matching, last.is_over) == (3000, 3000, 1, True)
        session = await shop.operations.open_session(DLQ, SessionRequest(limit=20, skip=2945))
        assert (session.held, session.skipped, session.complete) == (20, 2945, False)
        view = await shop.operations.message(session.id, hits[0].dead_letter.id)
        assert view.payload == {"customer": "C-02950"}
        chosen = Selection(session=session.id, ids=(hits[0].dead_letter.id,))
        job = await shop.operations.wait(
            (await shop.operations.start(redrive(selection=chosen))).id
        )
        assert job.counts.done == 1
        assert shop.bodies(MAIN) == [b'{"customer": "C-02950"}']
        assert len(shop.bodies(DLQ)) == 2999
        assert shop.bodies(DLQ)[:2] == [b'{"customer": "C-00000"}', b'{"customer": "C-00001"}']


@in_virtual_time
async def test_cancelled_search_returns_all_messages_in_order() -> None:
    async with open_shop() as shop:
        await _fill(shop, 500)
        async with aclosing(shop.operations.search(SearchRequest("customer"))) as progress:
            first = await anext(progress)
            assert 0 < first.held < 500
        assert shop.held() == 0
        assert len(shop.bodies(DLQ)) == 500
        assert (await shop.operations.audit())[0].action == "messages.search"


@in_virtual_time
async def test_search_groups_matches_by_payload_field() -> None:
    """A limit restricts the groups to the first messages."""
    async with open_shop() as shop:
        await shop.publish(
            Message("", DLQ, b'{"shop": "%d", "n": %d}' % (n % 3, n), properties(f"m{n}"))
            for n in range(300)
        )
        request = SearchRequest(queues=(DLQ,), limit=0, by="payload.shop", first=100)
        hits, last = await _search(shop, request)
        assert (hits, last.seen, last.matching, last.beyond) == ([], 100, 100, 200)
        counted = {group.key: group.count for group in last.groups}
        assert counted == {"0": 34, "1": 33, "2": 33}
        _, last = await _search(shop, SearchRequest("payload.n:7", by="payload.shop"))
        assert [(group.key, group.count) for group in last.groups] == [("1", 1)]
        assert (last.seen, last.beyond) == (300, 0)
        for request in (SearchRequest(), SearchRequest("x", by="colour")):
            with pytest.raises(BadRequest):
                await _search(shop, request)
        assert shop.held() == 0


@in_virtual_time
async def test_redrive_of_search_words_moves_all_matches() -> None:
    async with open_shop() as shop:
        await _fill(shop, 200)
        asked = redrive(selection=Selection(filter="C-0001"), expected_count=10)
        job = await shop.operations.wait((await shop.operations.start(asked)).id)
        assert job.counts.done == 10
        assert len(shop.bodies(DLQ)) == 190


@in_virtual_time
async def test_search_refuses_queue_with_delivery_limit() -> None:
    """A search of all queues skips the queue and reports it."""
    async with open_shop("ratatoskr", version=BrokerVersion(4, 0)) as shop:
        await _fill(shop, 3)
        with pytest.raises(UnsafeOperation):
            await _search(shop, SearchRequest("C-00001", (DLQ,)))
        hits, last = await _search(shop, SearchRequest("C-00001"))
        assert (hits, [one.queue for one in last.skipped]) == ([], [DLQ])
        with pytest.raises(NoSuch):
            await _search(shop, SearchRequest("C-00001", ("no.such",)))


@in_virtual_time
async def test_search_counts_messages_held_by_another_consumer() -> None:
    """RabbitMQ counts them every five seconds."""
    async with open_shop() as shop:
        await _fill(shop, 10)
        connection = await shop.broker.connect("another tool")
        channel = await connection.open_channel()
        await channel.qos(4)
        await channel.consume(DLQ, lambda _: None)
        await asyncio.sleep(10)
        _, last = await _search(shop, SearchRequest("C-0000"))
        assert (last.seen, last.matching) == (6, 6)
        assert [(one.queue, one.count) for one in last.held_by_others] == [(DLQ, 4)]
        await connection.close()
