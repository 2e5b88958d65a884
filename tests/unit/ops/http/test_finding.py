"""The pages that find messages: errors, unknown queues, words in bodies and filter matches."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hopback.broker.embedded import EmbeddedManagement
from hopback.message import Message, Properties
from hopback.ops.brokers.managed_broker import ManagedBroker
from hopback.ops.contract.requests import (
    RedriveRequest,
    Selection,
    SessionRequest,
    Target,
    TargetKind,
)
from hopback.ops.contract.search import survey_queue
from hopback.ops.contract.values import LookProgress
from hopback.ops.operations import Operations
from hopback.testing import in_virtual_time
from hopback.topology.model import Queue, QueueType
from tests.harness.seeded import publish
from tests.unit.ops.admin_service import DLQ, admin, dead_letter

if TYPE_CHECKING:
    from tests.unit.ops.admin_service import Admin


async def test_first_page_lists_errors_after_survey() -> None:
    """Each error is listed once, with its count and its queues."""
    dead_letters = [
        replace(dead_letter(n, "KeyError" if n % 3 else "LookupError"), routing_key="mail.dlq")
        for n in range(9)
    ]
    async with admin(*dead_letters, extra=(Queue("mail"), Queue("mail.dlq"))) as service:
        before = await service.client.get("/")
        asked = await service.client.post("/errors/survey")
        after = await service.client.get(asked.headers["location"])
    assert ">Errors <" not in before.text
    errors = r'<b class="num">(\d+)</b>.*?class="error" href="/errors/\w+">(\w+)<'
    found = re.findall(errors, after.text, re.DOTALL)
    assert found == [("6", "KeyError"), ("3", "LookupError")]
    assert "6 of 9 surveyed" in after.text
    assert "Survey finished" in after.text
    assert "Survey queues</button>" in before.text
    assert "Survey again</button>" in after.text


async def test_page_of_an_error_offers_actions_in_the_queues_that_contain_it() -> None:
    dead_letters = [
        replace(dead_letter(n, error), routing_key=queue)
        for queue, error, count in (
            ("mail.dlq", "KeyError", 3),
            ("mail.dlq", "LookupError", 2),
            ("post.dlq", "KeyError", 1),
            ("sms.dlq", "LookupError", 2),
        )
        for n in range(count)
    ]
    names = ("mail", "post", "sms")
    queues = (Queue(f"{name}{end}") for name in names for end in ("", ".dlq"))
    async with admin(*dead_letters, extra=tuple(queues)) as service:
        await service.client.post("/errors/survey")
        first = await service.client.get("/")
        link = re.search(r'href="(/errors/(\w+))">KeyError<', first.text)
        assert link is not None
        page = await service.client.get(link[1])
        rows = re.findall(
            r'class="name" href="/queues/([\w.]+)">.*?class="num"[^>]*>(\d+)<', page.text, re.DOTALL
        )
        assert rows == [("mail.dlq", "3"), ("post.dlq", "1")]
        assert "4 messages in 2 queues" in page.text
        assert "sms.dlq" not in page.text
        assert f"/search?find=group%3A{link[2]}&amp;in=post.dlq" in page.text
        assert f"/queues/mail.dlq/discard?filter=group%3A{link[2]}" in page.text
        assert f'name="filter" value="group:{link[2]}"><button data-download>Download' in page.text
        begun = await service.client.get(f"/queues/mail.dlq/re-drive?filter=group%3A{link[2]}")
        assert f'value="group:{link[2]}"' in begun.text
        gone = await service.client.get("/errors/none")
        assert gone.status_code == 404


async def test_every_error_of_a_survey_is_listed_with_its_first_and_last_message() -> None:
    dead_letters = [
        replace(dead_letter(n, f"Error{chr(65 + n)}"), routing_key="mail.dlq") for n in range(12)
    ]
    async with admin(*dead_letters, extra=(Queue("mail"), Queue("mail.dlq"))) as service:
        empty = await service.client.get("/errors")
        await service.client.post("/errors/survey")
        first = await service.client.get("/")
        listed = await service.client.get("/errors")
        found = await service.client.get("/errors", params={"find": "errorc"})
    shown = re.compile(r'class="error" href="/errors/\w+">(\w+)<')
    assert "No errors known" in empty.text
    assert len(shown.findall(first.text)) == 5
    assert '<a href="/errors">All 12 errors</a> <small>in 12 messages' in first.text
    assert sorted(shown.findall(listed.text)) == [f"Error{chr(65 + n)}" for n in range(12)]
    assert re.search(r'data-label="First"><time [^>]+>[^<]+ ago</time>', listed.text)
    assert re.search(r'data-label="Last"><time [^>]+>[^<]+ ago</time>', listed.text)
    course = r'<svg class="spark[^>]+><polyline points="([^"]+)"/></svg><small>at most 1 per hour'
    (one,) = {found[1] for found in re.finditer(course, listed.text)}
    assert len(one.split()) == 48
    assert len(re.findall(course, listed.text)) == 12
    assert len(re.findall(course, first.text)) == 5
    assert shown.findall(found.text) == ["ErrorC"]


async def test_error_page_names_queues_and_messages_that_a_survey_did_not_read() -> None:
    """An error without a name is shown with the reason of the broker."""
    dead_letters = [
        *(replace(dead_letter(n), routing_key="mail.dlq") for n in range(3)),
        Message("", "post.dlq", b"{}", Properties(message_id="p")),
        *(replace(dead_letter(n), routing_key="sms.dlq") for n in range(2)),
    ]
    names = ("mail", "post", "sms")
    extra = (*map(Queue, names), *(Queue(f"{name}.dlq") for name in names))
    async with admin(*dead_letters, extra=extra) as service:
        connection = await service.broker.connect("another tool")
        channel = await connection.open_channel()
        await channel.qos(1)
        tag = await channel.consume("sms.dlq", lambda _: None)
        await channel.cancel(tag)
        session = (await service.session("mail.dlq", limit=1, skip=1))["id"]
        await service.client.post("/errors/survey")
        page = (await service.client.get("/errors")).text
        first = (await service.client.get("/")).text
        await connection.close()
    assert "1 queue not surveyed" in page
    assert f"the browse session {session} of local (open since <time " in page
    assert re.search(r"1 message in <a [^>]+>sms.dlq</a> not read: held by perhaps ", page)
    for text in (page, first):
        assert re.search(r"No error recorded</a> ?<small>unknown</small>", text)


async def test_error_list_polls_until_survey_ends() -> None:
    """Meanwhile it shows no results of an earlier survey."""
    foreign = (Queue("mail"), Queue("mail.dlq"))
    first, second = (
        replace(dead_letter(n, error), routing_key="mail.dlq")
        for n, error in enumerate(("LookupError", "KeyError"))
    )
    async with admin(first, extra=foreign) as service:
        await service.client.post("/errors/survey")
        await publish(service.broker, second)
        service.operations.surveys.running = LookProgress("mail.dlq", 0, 2)
        meanwhile = await service.client.get("/")
        await service.operations.errors(survey=True)
        over = await service.client.get("/")
    assert ("every 1s" in meanwhile.text, "KeyError" in meanwhile.text) == (True, False)
    assert ("every 1s" in over.text, "KeyError" in over.text) == (False, True)


async def test_errors_of_emptied_queues_are_not_shown() -> None:
    foreign = (Queue("mail"), Queue("mail.dlq"), Queue("post"), Queue("post.dlq"))
    mail, post = (
        replace(dead_letter(n), routing_key=f"{name}.dlq")
        for n, name in enumerate(("mail", "post"))
    )
    async with admin(mail, post, extra=foreign) as service:
        await service.client.post("/errors/survey")
        both = await service.client.get("/")
        channel = await (await service.broker.connect("somebody")).open_channel()
        await channel.purge_queue("mail.dlq")
        service.clock.advance(11)  # the list asks every ten seconds
        one = await service.client.get("/")
        await channel.purge_queue("post.dlq")
        service.clock.advance(11)  # the list asks every ten seconds
        none = await service.client.get("/")
    assert '<b class="num">2</b>' in both.text
    assert '<b class="num">1</b>' in one.text
    assert ">Errors <" not in none.text


@in_virtual_time
async def test_survey_does_not_warn_of_its_own_consumer() -> None:
    """The management API still shows it for a few seconds."""
    foreign = (Queue("mail"), Queue("mail.dlq"))
    some = (replace(dead_letter(n), routing_key="mail.dlq") for n in range(2))
    async with admin(*some, extra=foreign) as service:
        await service.client.post("/errors/survey")
        channel = await (await service.broker.connect("a survey's")).open_channel()
        await channel.qos(1)
        await channel.consume("mail.dlq", lambda _: None)
        await asyncio.sleep(6)  # the broker counts every 5 s
        service.clock.advance(2)
        after = await service.client.get("/")
        service.clock.advance(60)
        later = await service.client.get("/")
    assert "1 consumer<" not in after.text
    assert "1 held" not in after.text
    assert "1 consumer<" in later.text


async def test_newer_of_session_and_survey_is_shown() -> None:
    foreign = (Queue("mail"), Queue("mail.dlq", type=QueueType.CLASSIC))
    first = replace(dead_letter(1), routing_key="mail.dlq")
    async with admin(first, extra=foreign) as service:
        looked = await service.client.post("/queues/mail.dlq/look", data={"how": "plain"})
        session = looked.headers["location"].partition("?")[0]
        await service.client.post(f"{session}/release")
        await publish(
            service.broker,
            *(replace(dead_letter(n, "KeyError"), routing_key="mail.dlq") for n in range(3)),
        )
        service.clock.advance(60)
        await service.client.post("/errors/survey")
        surveyed = await service.client.get("/")
    assert '<span class="error">KeyError</span> <small>3 of 4 surveyed' in surveyed.text


async def test_unknown_queue_can_be_added_or_ignored() -> None:
    """Both answers can be withdrawn."""
    resting = Message("", "leftovers", b"{}", Properties())
    async with admin(resting, extra=(Queue("leftovers"),)) as service:
        asked = await service.client.get("/")
        await service.client.post("/candidates", data={"queue": "leftovers", "answer": "add"})
        added = await service.client.get("/")
        await service.client.post("/candidates", data={"queue": "leftovers", "answer": "forget"})
        await service.client.post("/candidates", data={"queue": "leftovers", "answer": "ignore"})
        ignored = await service.client.get("/")
        wrong = await service.client.post("/candidates", data={"queue": "leftovers", "answer": "?"})
    assert "1 queue has messages and no consumer: does it contain dead letters?" in asked.text
    assert '<a href="#asked">1 more in 1 queue may be dead letters</a>' in asked.text
    assert 'href="/queues/leftovers"' not in asked.text
    assert 'href="/queues/leftovers"' in added.text
    assert 'href="/queues/leftovers"' not in ignored.text
    assert "no consumer" not in ignored.text
    assert "is ignored" in ignored.text
    assert wrong.status_code == 422


async def test_queue_list_draws_depth_of_last_day_from_store() -> None:
    """Arrivals are shown even if the depth fell."""
    async with admin(*(dead_letter(n) for n in range(5))) as service:
        surveys = service.operations.surveys
        for count in (4, 0, 3):
            await surveys.trends.sample()
            service.clock.advance(3600)
            await publish(service.broker, *(dead_letter(n) for n in range(count)))
        connection = await service.broker.connect("somebody")
        await (await connection.open_channel()).purge_queue(DLQ)
        await publish(service.broker, dead_letter(1))
        await surveys.trends.sample()
        surveys.trends.recent.clear()  # as in a process that has just begun
        await surveys.trends.sample()
        page = (await service.client.get("/")).text
    assert "<polyline points=" in page
    assert "-4 in the last 3 h, 4 arrived" in page


async def test_queue_page_shows_depth_change_up_to_now() -> None:
    async with admin(*(dead_letter(n) for n in range(5))) as service:
        for _ in range(2):
            await service.operations.surveys.trends.sample()
            service.clock.advance(900)
        await publish(service.broker, dead_letter(5))
        page = (await service.client.get(f"/queues/{DLQ}")).text
    assert "+1 in the last 30 min" in page
    assert "unchanged for" not in page


async def test_queue_list_and_map_agree_on_dead_letter_queues() -> None:
    """A queue that an operator added is drawn as a dead-letter queue. An ignored queue is not."""
    async with admin(extra=(Queue("leftovers"),)) as service:
        for queue, answer in (("leftovers", "add"), (DLQ, "ignore")):
            await service.client.post("/candidates", data={"queue": queue, "answer": answer})
        page = (await service.client.get("/topology")).text
        graph = (await service.client.get("/topology/graph.json")).json()["elements"]
    kinds = {item["data"].get("name"): item["data"].get("kind") for item in graph}
    assert (kinds["leftovers"], kinds[DLQ]) == ("dead-letter", "plain")
    assert 'href="/queues/leftovers"' in page
    assert f'href="/queues/{DLQ}"' not in page
    assert "<h1>1 exchange, 4 queues</h1>" in page


async def test_search_event_gives_position_that_session_opens() -> None:
    dead_letters = [dead_letter(n, body=json.dumps({"c": f"C-{n:05}"}).encode()) for n in range(30)]
    async with admin(*dead_letters) as service:
        page = await service.client.get("/search", params={"find": "C-00027"})
        events = await service.client.get("/search/events", params={"find": "C-00027", "in": DLQ})
        told = [json.loads(line[6:]) for line in events.text.splitlines() if "hits" in line]
        (hit,) = [one for each in told for one in each["hits"]]
        look = {"how": "plain", "limit": "1", "skip": str(hit["letter"]["place"] - 1)}
        opened = await service.client.post(f"/queues/{DLQ}/look", data=look)
        held = await service.client.get(opened.headers["location"])
    assert f'<option value="{DLQ}"' in page.text
    assert told[-1]["isOver"]
    assert "C-00027" in hit["excerpt"]
    assert held.text.count('type="checkbox" name="ids"') == 1
    assert "m-27" in held.text


async def test_returned_messages_are_searched_beyond_session_size() -> None:
    """The stream has the messages with their errors, then their groups. The job keeps the count."""
    dead_letters = [dead_letter(n, "KeyError" if n % 3 else "LookupError") for n in range(2100)]
    async with admin(*dead_letters) as service:
        job = await service.operations.start(RedriveRequest(
            queue=DLQ, selection=Selection(limit=30), reason="x",
            target=Target(TargetKind.QUEUE, routing_key=DLQ),
        ))  # fmt: skip
        await service.operations.wait(job.id)
        asked = await service.client.post(f"/jobs/{job.id}/came-back")
        page = await service.client.get(asked.headers["location"])
        (path,) = re.findall(r'data-events="([^"]+)"', page.text)
        events = await service.client.get(path)
        told = [json.loads(line[6:]) for line in events.text.splitlines() if "hits" in line]
        after = (await service.client.get(f"/jobs/{job.id}")).text
    assert asked.headers["location"] == f"/jobs/{job.id}/came-back"
    hits = [hit["letter"] for each in told for hit in each["hits"]]
    assert (len(hits), {hit["redriveJob"] for hit in hits}) == (30, {job.id})
    counted = {one["sample"]["error"]: one["count"] for one in told[-1]["groups"]}
    assert (counted, told[-1]["seen"]) == ({"KeyError": 20, "LookupError": 10}, 2100)
    assert "30 messages failed again" in after


async def test_refused_search_reports_reason_in_event() -> None:
    """A script cannot read the body of a refused stream."""
    limited = Queue("old.dlq", QueueType.QUORUM, arguments={"x-delivery-limit": 5})
    async with admin(extra=(Queue("old"), limited), version="4.0") as service:
        asked = {"find": "C-1", "in": "old.dlq"}
        events = await service.client.get("/search/events", params=asked)
    (told,) = [json.loads(line[6:]) for line in events.text.splitlines() if "hits" in line]
    assert told["isOver"]
    assert "removes a message that was requeued 6 times" in told["skipped"][0]["reason"]


async def test_groups_and_redrive_button_follow_filter() -> None:
    """Messages can be grouped by any header."""
    dead_letters = [
        replace(one, properties=replace(one.properties, headers={
            **one.properties.headers, "x-tenant": "acme" if n % 2 else "globex"}))
        for n in range(6) for one in [dead_letter(n, "KeyError" if n < 2 else "LookupError")]
    ]  # fmt: skip
    async with admin(*dead_letters) as service:
        session = (await service.session())["id"]
        asked = {"filter": "error:LookupError", "by": "header.x-tenant"}
        page = (await service.client.get(f"/sessions/{session}", params=asked)).text
        bad = (await service.client.get(f"/sessions/{session}", params={"by": "colour"})).text
    assert "Re-drive all 4 that match" in page
    assert page.count("Re-drive 2…") == 2
    assert "header.x-tenant" in page
    assert "header.NAME" in bad


async def _search(service: Admin, text: str) -> dict[str, Any]:
    """Search all queues by the API, and return the last event with the hits of all events."""
    answer = await service.client.post("/admin/dlq/search", json={"filter": text})
    told = [json.loads(line[6:]) for line in answer.text.splitlines() if "hits" in line]
    last: dict[str, Any] = told[-1]
    return last | {"hits": [hit for each in told for hit in each["hits"]]}


async def test_search_finds_messages_held_by_session_of_service() -> None:
    async with admin(*(dead_letter(n) for n in range(7))) as service:
        session = (await service.session(limit=3))["id"]
        found = await _search(service, "error:LookupError")
        held = [hit for hit in found["hits"] if hit["session"]]
        opened = f"/sessions/{session}/messages/{held[0]['letter']['id']}"
        assert (found["seen"], found["total"], found["matching"]) == (7, 7, 7)
        assert {hit["session"] for hit in held} == {session}
        assert len(held) == 3
        assert (await service.client.get(opened)).status_code == 200
        assert found["heldByOthers"] == []


async def test_session_says_that_a_search_has_changed_the_order_of_a_quorum_queue() -> None:
    """The queue returns the messages of the session behind those of the search."""
    async with admin(*(dead_letter(n) for n in range(7))) as service:
        assert service.broker.snapshot().queue(DLQ).type == "quorum"
        session = (await service.session(limit=3))["id"]
        before = await service.client.get(f"/sessions/{session}")
        await _search(service, "error:LookupError")
        page = await service.client.get(f"/sessions/{session}")
        view = (await service.client.get(f"/admin/dlq/sessions/{session}")).json()
    text = "will put these messages behind others"
    assert (text in before.text, text in page.text, view["orderKept"]) == (False, True, False)


async def test_search_does_not_take_a_session_for_another_consumer() -> None:
    """A quorum queue counts every consumer of the session that still holds messages."""
    async with admin(*(dead_letter(n) for n in range(7))) as service:
        first = (await service.session(limit=7))["id"]
        await service.client.delete(f"/admin/dlq/sessions/{first}")
        session = (await service.session(limit=3))["id"]  # holds the others to keep the order
        found = await _search(service, "error:LookupError")
        surveyed = await service.operations.errors(survey=True)
    (held,) = found["heldByOthers"]
    assert (held["count"], session in held["holders"][0]) == (4, True)
    (queue,) = surveyed.queues
    assert session in queue.why_not


async def test_search_reports_messages_held_by_another_consumer() -> None:
    async with admin(*(dead_letter(n) for n in range(7))) as service:
        connection = await service.broker.connect("another tool")
        channel = await connection.open_channel()
        await channel.qos(2)
        await channel.consume(DLQ, lambda _: None, tag="worker-1")
        found = await _search(service, "error:LookupError")
        (held,) = found["heldByOthers"]
        assert (found["seen"], found["matching"]) == (5, 5)
        assert (held["queue"], held["count"], len(held["holders"])) == (DLQ, None, 1)
        assert held["holders"][0].startswith("worker-1 of 'another tool' (")
        assert re.search(r"connected since \d{4}-\d\d-\d\dT[\d:]+Z", held["holders"][0])
        await connection.close()


async def test_search_reports_messages_that_a_session_of_service_has_skipped() -> None:
    """They are held, and their contents are not kept."""
    async with admin(*(dead_letter(n) for n in range(7))) as service:
        session = (await service.session(limit=2, skip=3))["id"]
        found = await _search(service, "error:LookupError")
        (held,) = found["heldByOthers"]
        assert (found["seen"], found["matching"]) == (4, 4)
        assert (held["queue"], held["count"]) == (DLQ, 3)
        assert f"browse session {session} of local (open since " in held["holders"][0]
        assert not (await survey_queue(service.operations, DLQ)).complete


@in_virtual_time
async def test_search_names_session_of_another_process_and_its_time() -> None:
    """Its consumer has ended, so only its channel shows that it holds messages."""
    async with admin(*(dead_letter(n) for n in range(7))) as service:
        other = Operations(
            ManagedBroker(service.broker, management=EmbeddedManagement(service.broker))
        )
        await other.open_session(DLQ, SessionRequest(limit=2))
        await service.session(limit=1)
        await asyncio.sleep(6)  # a quorum queue counts its messages every 5 s
        (held,) = (await _search(service, "error:LookupError"))["heldByOthers"]
        (holder,) = held["holders"]
        assert held["count"] == 2
        assert holder.startswith(f"'hopback browse {DLQ}' (")
        assert "connected since" in holder
        await other.close()


async def test_groups_report_messages_held_by_another_consumer() -> None:
    async with admin(*(dead_letter(n) for n in range(7))) as service:
        connection = await service.broker.connect("another tool")
        channel = await connection.open_channel()
        await channel.qos(2)
        await channel.consume(DLQ, lambda _: None, tag="worker-1")
        found = await survey_queue(service.operations, DLQ)
        assert (found.seen, found.complete) == (5, False)
        assert [one.queue for one in found.held] == [DLQ]
        await connection.close()
