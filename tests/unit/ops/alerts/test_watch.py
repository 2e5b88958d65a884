"""Alerts of a service over an embedded broker: lost consumers, and the subject of a mail."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from hopback.clock import SystemClock
from hopback.ops.alerts.book import AlertBook
from hopback.ops.alerts.sender import AlertSender, NotTaken, mail_of
from hopback.ops.alerts.values import Alert, AlertKind, AlertNotice, AlertState
from hopback.ops.alerts.watch import Alerting, AlertReader
from hopback.ops.contract.requests import RedriveRequest
from hopback.ops.contract.values import JobState, Moment
from hopback.ops.http.app import create_app
from hopback.ops.http.settings import parse_settings
from hopback.ops.http.sweep import Sweep
from hopback.ops.jobs.job_record import JobRecord, JobSpec
from hopback.sql.sqlite import MemoryDatabase
from hopback.systems.demo.web import lifespan
from hopback.testing import in_virtual_time
from tests.unit.ops.cli.raffle import MAIN, Raffle, raffle

_TICKS_S = 12.0
"""Management learns of consumers by the broker's ticks."""


def _create_alerting(found: Raffle, book: AlertBook) -> Alerting:
    rule = {"name": "no consumer", "kind": "consumer-gone"}
    target = {"name": "hook", "kind": "webhook", "url": "http://127.0.0.1:1/"}
    alerts = {"rules": [rule], "targets": [target], "wait_seconds": 3600}
    settings = parse_settings({"alerts": alerts}, {}, "test").alerts
    operations = found.operations
    source = AlertReader(
        "",
        Sweep(operations.queues, operations.clock),
        operations.resumable_jobs,
        operations.surveys.by_queue,
        operations.remember_consumed,
    )
    return Alerting(settings, book, (source,), operations.clock, {})


async def _fire_texts(alerting: Alerting) -> list[str]:
    await asyncio.sleep(_TICKS_S)
    await alerting.look()
    return [
        each.text
        for each in (await alerting.list_alerts()).items
        if each.state is AlertState.FIRING
    ]


@in_virtual_time
async def test_consumer_gone_fires_only_for_queues_that_had_a_consumer() -> None:
    async with raffle() as found:
        book = AlertBook(MemoryDatabase())
        alerting = _create_alerting(found, book)
        assert await _fire_texts(alerting) == []
        connection = await found.broker.connect("a consumer")
        await (await connection.open_channel()).consume(MAIN, lambda _: None)
        assert await _fire_texts(alerting) == []
        await connection.close()
        assert await _fire_texts(alerting) == [f"{MAIN!r} has lost its consumers"]


@in_virtual_time
async def test_consumer_gone_remembers_consumers_after_a_restart() -> None:
    async with raffle() as found:
        connection = await found.broker.connect("a consumer")
        await (await connection.open_channel()).consume(MAIN, lambda _: None)
        assert await _fire_texts(_create_alerting(found, AlertBook(MemoryDatabase()))) == []
        await connection.close()
        assert len(await _fire_texts(_create_alerting(found, AlertBook(MemoryDatabase())))) == 1


@in_virtual_time
async def test_alert_of_failed_job_fires_after_100_newer_jobs() -> None:
    """It is resolved when the job is cancelled."""
    rule = {"name": "stopped", "kind": "job-stopped"}
    target = {"name": "hook", "kind": "webhook", "url": "http://127.0.0.1:1/"}
    alerts = {"every_seconds": 1, "rules": [rule], "targets": [target], "wait_seconds": 3600}
    async with raffle() as found:
        settings = parse_settings({"alerts": alerts}, {}, "test")
        app = create_app(found.operations, settings=settings, environment={})
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")

        async def read_states() -> list[tuple[str, str]]:
            await asyncio.sleep(_TICKS_S)
            items = (await client.get("/admin/alerts")).json()["items"]
            return [(each["subject"], each["state"]) for each in items]

        async with lifespan(app), client:
            await _end_job(found, 0, JobState.FAILED)
            assert await read_states() == [("j-0", "firing")]
            for number in range(1, 102):
                await _end_job(found, number, JobState.COMPLETED)
            assert await read_states() == [("j-0", "firing")]
            await found.operations.cancel("j-0")
            assert await read_states() == [("j-0", "resolved")]


async def _end_job(found: Raffle, number: int, state: JobState) -> None:
    """Write a job of another process that has ended."""
    request = RedriveRequest(queue=f"q{number}.dlq", reason="repaired")
    spec = JobSpec(request=request, broker=found.operations.broker.journal_name)
    job = JobRecord(f"j-{number}", spec)
    await found.operations.journal.begin(job, "another process")
    await found.operations.journal.save(job.to(state, 0.0), "another process")


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ({"kind": "mail", "host": "a..b", "sender": "a@b.c", "to": ["a@b.c"]}, "label"),
        ({"kind": "webhook", "url": "http://é../"}, "hostname"),
    ],
)
async def test_alert_for_invalid_host_is_not_taken(target: dict[str, object], problem: str) -> None:
    alerts = {"targets": [{"name": "ops", **target}]}
    settings = parse_settings({"alerts": alerts}, {}, "test").alerts
    sender = AlertSender(settings.targets[0], {}, SystemClock())
    with pytest.raises(NotTaken, match=problem):
        await sender.send(AlertNotice("n-1", "ops", Moment(1.0), is_test=True))


def _alert(number: int, broker: str = "") -> Alert:
    return Alert(
        id=f"a-{number}",
        rule="deep",
        kind=AlertKind.DEPTH,
        broker=broker,
        queue=f"q{number}.dlq",
        state=AlertState.FIRING,
        text="11 dead letters",
        since=Moment(1.0),
    )


@pytest.mark.parametrize(
    ("alerts", "subject"),
    [
        ([_alert(1)], "Hopback: deep (q1.dlq on mq.test/shop)"),
        ([_alert(1, "prod")], "Hopback: deep (q1.dlq on prod)"),
        (
            [_alert(1, "prod"), _alert(2, "test")],
            "Hopback: 2 firing (q1.dlq on prod, q2.dlq on test)",
        ),
        (
            [_alert(number, "prod") for number in range(1, 6)],
            "Hopback: 5 firing (q1.dlq on prod, q2.dlq on prod, q3.dlq on prod and others)",
        ),
    ],
)
def test_subject_of_alert_mail_names_queue_and_broker(alerts: list[Alert], subject: str) -> None:
    notice = AlertNotice("n-1", "mail", Moment(1.0), tuple(alerts))
    mail = mail_of(notice, "", "hopback@example.com", ["ops@example.com"], "mq.test/shop")
    assert mail["Subject"] == subject
