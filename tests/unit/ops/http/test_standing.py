"""The status texts of pages: sessions that are held or over, and obstacles to a job."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from msgspec import structs

from hopback.message import Properties
from hopback.ops.alerts.values import Alert, AlertKind, AlertState, ToldState
from hopback.ops.contract.requests import Pace, RedriveRequest, Selection, SessionRequest
from hopback.ops.contract.values import AuditEntry, JobState, Moment
from hopback.ops.page.rendering import renderer, visible
from hopback.topology.model import Queue
from tests.unit.ops.admin_service import DLQ, MAIN, NOW, admin, dead_letter


async def test_open_page_learns_that_its_session_is_over() -> None:
    async with admin(dead_letter(1)) as service:
        session = (await service.session())["id"]
        held = (await service.client.get("/alive", params={"session": session})).json()
        await service.operations.release(session)
        over = (await service.client.get("/alive", params={"session": session})).json()
    assert (held["held"], over["held"]) == (True, False)
    assert held["trouble"] == ""


async def test_ended_session_links_back_to_its_queue() -> None:
    """The address names the queue, so the link works after a restart."""
    async with admin(dead_letter(1)) as service:
        opened = await service.client.post(f"/queues/{DLQ}/look", data={"how": "plain"})
        address = opened.headers["location"]
        await service.operations.release(address.partition("?")[0].rpartition("/")[2])
        lost = await service.client.get(address)
    assert lost.status_code == 404
    assert "Browse session ended" in lost.text
    assert "Its messages were requeued in order." in lost.text
    assert f'href="/queues/{DLQ}#look">Look at {DLQ} again' in lost.text


async def test_unknown_path_is_html_page_in_browser_and_problem_for_api() -> None:
    async with admin() as service:
        person = await service.client.get("/nowhere", headers={"accept": "text/html"})
        program = await service.client.get("/nowhere", headers={"accept": "application/json"})
    assert (person.status_code, program.status_code) == (404, 404)
    assert "Path /nowhere does not exist" in person.text
    assert 'href="/">Dead letters</a>' in person.text
    assert program.json()["code"] == "not-found"


async def test_redrive_form_counts_messages_held_by_sessions() -> None:
    async with admin(*(dead_letter(n) for n in range(3))) as service:
        await service.operations.open_session(DLQ, SessionRequest(limit=2))
        first = await service.client.get(f"/queues/{DLQ}/re-drive")
    assert "<b>1</b> messages now. 2 more are held by browse sessions" in first.text


async def test_time_in_sentence_has_no_iso_markers() -> None:
    async with admin(dead_letter(1)) as service:
        session = (await service.session())["id"]
        (message,) = (await service.operations.messages(session)).dead_letters
        shown = await service.client.get(f"/sessions/{session}/messages/{message.id}")
    (story,) = re.findall(r'<p class="story">(.*?)</p>', shown.text)
    assert re.search(r" at <time [^>]*>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC</time>", story)


def test_only_timestamps_in_sentence_become_time_elements() -> None:
    """The page shows them in the reader's time zone. All other text is escaped."""
    told = renderer().filters["with_clocks"](
        "<b> until 2023-11-14T22:13:20Z, not 2023-02-31T00:00:00Z"
    )
    assert told == (
        '&lt;b&gt; until <time datetime="2023-11-14T22:13:20Z" data-clock="1700000000">'
        "2023-11-14 22:13:20 UTC</time>, not 2023-02-31T00:00:00Z"
    )


def test_rate_has_at_most_two_significant_digits() -> None:
    rate = renderer().filters["rate"]
    assert [rate(n) for n in (0.25, 1.0, 2.5, 200.0, 4812.4)] == ["0.2", "1", "2.5", "200", "4,812"]


@pytest.mark.parametrize(
    ("arrived", "words"), [(0, "-5 in the last 60 s"), (2, "-5 in the last 60 s, 2 arrived")]
)
def test_trend_shows_arrivals_only_if_messages_arrived(arrived: int, words: str) -> None:
    shown = renderer().from_string(
        '{% import "parts.html" as parts %}{{ parts.spark(trend, came) }}'
    )
    line = shown.render(trend=((0.0, 9), (60.0, 4)), came=arrived)
    assert re.findall("<small>(.*?)</small>", line) == [words]


async def test_paused_job_shows_its_state_once() -> None:
    async with admin(*(dead_letter(n) for n in range(3))) as service:
        slow = RedriveRequest(queue=DLQ, selection=Selection(), reason="x", pace=Pace(0.001))
        job = await service.operations.start(slow)
        await service.operations.pause(job.id)
        async for told in service.operations.events(job.id):
            if told.state is JobState.PAUSED:
                break
        page = await service.client.get(f"/jobs/{job.id}")
        listed = await service.client.get("/jobs")
        await service.operations.cancel(job.id)
    assert "<h1>1 job paused</h1>" in listed.text
    (said,) = re.findall(r'<p aria-live="polite">(.*?)</p>', page.text)
    assert re.sub("<[^>]*>", "", said).split() == ["paused"]


async def test_dismissed_sign_in_notice_is_not_shown_again() -> None:
    """The form redirects to the page it was on."""
    async with admin() as service:
        before = await service.client.get("/jobs")
        read = await service.client.post("/notice/read", data={"next": "/jobs"})
        after = await service.client.get("/jobs")
        foreign = await service.client.post("/notice/read", data={"next": "//evil.example/"})
    assert "No sign-in is configured" in before.text
    assert read.headers["location"] == "/jobs"
    assert "No sign-in is configured" not in after.text
    assert foreign.headers["location"] == "/"


async def test_own_session_is_not_shown_as_consumer() -> None:
    """A quorum queue counts a cancelled consumer while it holds messages."""
    async with admin(*(dead_letter(n) for n in range(3))) as service:
        await service.operations.open_session(DLQ, SessionRequest(limit=3))
        page = await service.client.get(f"/queues/{DLQ}")
        await service.operations.release(service.operations.sessions()[0].id)
    assert "Continue looking" in page.text
    assert "they remove messages" not in page.text


async def test_active_job_blocks_first_step_of_redrive() -> None:
    """The page links to the job."""
    async with admin(*(dead_letter(n) for n in range(3))) as service:
        slow = RedriveRequest(queue=DLQ, selection=Selection(), reason="x", pace=Pace(0.001))
        job = await service.operations.start(slow)
        first = await service.client.get(f"/queues/{DLQ}/discard")
        await service.operations.cancel(job.id)
    assert "has an active job" in first.text
    assert f"/jobs/{job.id}" in first.text
    assert re.search(r'value="2" disabled', first.text)


async def test_redrive_of_queue_without_design_names_target_queue() -> None:
    foreign = (Queue("mail"), Queue("mail.dlq"))
    properties = Properties(headers={"x-exception-message": "no"})
    message = replace(dead_letter(1), routing_key="mail.dlq", properties=properties)
    async with admin(message, extra=foreign) as service:
        act = "/queues/mail.dlq/re-drive"
        pages = [
            await service.client.get("/queues/mail.dlq"),
            await service.client.post(act, data={"step": "2", "on": "1"}),
            await service.client.post(act, data={"step": "3", "on": "2", "reason": "x"}),
        ]
    for page in pages:
        assert page.status_code == 200
        assert "by design" not in page.text
    assert pages[1].text.count('back to queue <b class="name">mail</b>') == 1
    assert "go to queue mail" in pages[2].text


async def test_redrive_from_shared_queue_names_target_of_each_design() -> None:
    async with admin(*(dead_letter(n) for n in range(3)), others=("mails",)) as service:
        act = f"/queues/{DLQ}/re-drive"
        review = await service.client.post(act, data={"step": "3", "on": "2", "reason": "x"})
        job = await service.operations.start(RedriveRequest(queue=DLQ, reason="x"))
        await service.operations.wait(job.id)
        page = await service.client.get(f"/jobs/{job.id}")
        audit = await service.client.get("/audit")
    assert "go to the target of each message&#39;s design" in review.text
    assert "<dd>to the target of each message&#39;s design</dd>" in page.text
    assert "selected, to the target of each message&#39;s design" in audit.text


async def test_redrive_names_target_of_the_design_once() -> None:
    async with admin(*(dead_letter(n) for n in range(3))) as service:
        act = f"/queues/{DLQ}/re-drive"
        review = await service.client.post(act, data={"step": "3", "on": "2", "reason": "x"})
    assert f"go to queue {MAIN}, by design.</p>" in review.text


async def test_spring_stack_trace_is_shown_as_stack_trace() -> None:
    stack = "org.spring.Wrapper: no\n\tat org.spring.Adapter.invoke(Adapter.java:1)\nCaused by: x"
    properties = Properties(headers={"x-exception-message": "no", "x-exception-stacktrace": stack})
    async with admin(replace(dead_letter(1), properties=properties)) as service:
        session = await service.session()
        (item,) = (await service.client.get(f"{session['url']}/messages")).json()["items"]
        page = await service.client.get(f"/sessions/{session['id']}/messages/{item['id']}")
    shown = re.search(r'<pre class="trace"[^>]*>(.*?)</pre>', page.text, re.DOTALL)
    assert shown is not None
    assert shown.group(1).count("\n") == 2
    assert "recorded by Spring" in page.text


async def test_times_show_their_zone_and_exact_value_on_hover() -> None:
    """Times of the same day omit the date."""
    moment = renderer().filters["moment"]
    assert moment(NOW, NOW + 10) == "22:13:20 UTC"
    assert moment(NOW, NOW + 86_400) == "14 Nov, 22:13:20 UTC"
    assert moment(NOW, NOW + 400 * 86_400) == "14 Nov 2023, 22:13:20 UTC"
    message = dead_letter(1)
    stamped = replace(message.properties, timestamp=1_700_000_000)
    async with admin(replace(message, properties=stamped)) as service:
        session = await service.session()
        (item,) = (await service.client.get(f"{session['url']}/messages")).json()["items"]
        page = await service.client.get(f"/sessions/{session['id']}/messages/{item['id']}")
    assert "2023-11-14 22:13:20 UTC (1700000000)" in page.text


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"action": "job.rate", "details": {"rate": "no limit"}}, "rate no limit"),
        ({"action": "job.rate", "details": {"rate": 200.0}}, "rate 200 a second"),
        (
            {
                "action": "job.start",
                "details": {"kind": "discard", "selected": 1200},
            },
            "discard, 1,200 selected",
        ),
        (
            {"action": "session.open", "details": {"held": 5, "forced": False, "session": "s-1"}},
            "5 held, session s-1",
        ),
        (
            {
                "action": "job.end",
                "details": {
                    "kind": "re-drive",
                    "state": "stopped",
                    "remaining": 4899,
                    "came_back": 20,
                    "came_back_at_least": True,
                },
            },
            "re-drive, stopped, 4,899 remain, at least 20 returned",
        ),
    ],
    ids=["no-rate", "rate", "discard", "session", "stopped"],
)
def test_audit_details_are_written_in_words(entry: dict[str, object], words: str) -> None:
    made = AuditEntry(at=Moment(NOW), by="ada", **entry)  # type: ignore[arg-type]
    assert renderer().filters["details_line"](made) == words


def test_joiner_is_kept_in_emoji_and_escaped_in_words() -> None:
    astronaut = "\U0001f469\u200d\U0001f680"
    heart = "\u2764\ufe0f\u200d\U0001f525"
    assert visible(f"{astronaut} {heart}") == f"{astronaut} {heart}"
    assert visible("pay\u200dpal") == "pay⟨U+200D⟩pal"
    assert visible(f"{astronaut[0]}\u200d") == f"{astronaut[0]}⟨U+200D⟩"


def test_alert_shows_targets_that_did_not_accept_it() -> None:
    """Pending alerts take one line per rule."""
    alert = Alert(
        id="a-1",
        rule="orders pile up",
        kind=AlertKind.DEPTH,
        queue="orders.dlq",
        state=AlertState.FIRING,
        text="6,000 dead letters, more than 100",
        since=Moment(NOW - 60),
        fired_at=Moment(NOW - 30),
        told={name: ToldState(AlertState.FIRING, Moment(NOW - 30)) for name in ("chat", "pager")},
    )
    pending = [
        structs.replace(alert, rule="nobody looks", queue=f"q-{n}", state=AlertState.PENDING)
        for n in range(9)
    ]
    page = (
        renderer()
        .get_template("alerts.html")
        .render(
            me=None,
            told=[],
            now=NOW,
            headline="1 active alert",
            firing=[alert],
            pending=pending,
            resolved=[],
            manages=False,
            rules=(),
            targets=(),
            taken={"chat": NOW - 10, "pager": NOW - 40},
            tested=None,
        )
    )
    told = re.search(r'<td data-label="Notified">(.*?)</td>', page)
    assert told is not None
    assert re.sub("<[^>]*>", "", told[1]) == "chat, pager not delivered yet"
    assert page.count(">nobody looks<") == 1
    assert "and 3 more" in page


async def test_review_states_minimum_duration_of_ramped_redrive() -> None:
    """The job watches after each reached stage and at the end."""
    asked = {"step": "3", "on": "2", "reason": "x", "ramp": "1", "watchSeconds": "60"}
    async with admin(*(dead_letter(n) for n in range(10))) as service:
        page = await service.client.post(f"/queues/{DLQ}/re-drive", data=asked)
    rule = re.search(r"<dt>Stop rule</dt><dd>(.*?)</dd>", page.text)
    assert rule is not None
    assert "first counts arrivals for 10 s. It sends 1, 5, 25 messages, then the rest" in rule[1]
    assert (
        "watches 60 s after each stage and at the end. It stops when a message returns." in rule[1]
    )
    assert "stops when more messages arrive than before its start" in rule[1]
    assert "<dt>Duplicates</dt><dd>Up to 10 messages, if the job is killed" in page.text
    assert "at least 3.2 min" in page.text


def test_queue_weight_grows_by_powers_of_ten() -> None:
    weight = renderer().filters["weight"]
    assert [weight(n) for n in (None, 7, 99, 100, 1_000, 50_000, 2_000_000)] == [*"1112344"]
