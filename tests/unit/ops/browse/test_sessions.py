"""Browse sessions: look without harm. In virtual time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hopback.broker.embedded import EmbeddedBroker, EmbeddedManagement
from hopback.errors import BadFilter, BadRequest, NoSuch, SessionOver, UnsafeOperation
from hopback.message import Message, Properties
from hopback.ops.browse.walk import walk
from hopback.ops.contract.requests import GroupBy, Selection, SessionRequest
from hopback.ops.contract.search import survey_queue
from hopback.ops.contract.values import HeldBack, Price
from hopback.testing import in_virtual_time
from hopback.topology.model import Policy, Queue
from hopback.version import BrokerVersion
from tests.unit.ops.shop import ANN, DLQ, open_shop, properties, redrive

if TYPE_CHECKING:
    from hopback.fields import FieldValue

V3, V4, V43 = BrokerVersion(3, 10), BrokerVersion(4, 0), BrokerVersion(4, 3)


@in_virtual_time
async def test_queue_list_reports_messages_held_in_retry_queue() -> None:
    """Retries that their target queue rejects are not part of its length."""
    async with open_shop() as shop:
        retry = next(queue.name for queue in shop.topology.queues if ".retry." in queue.name)
        connection = await shop.broker.connect("operator")
        channel = await connection.open_channel()
        await channel.delete_queue("orders")
        await shop.publish(Message("", retry, b"x", properties(f"m{n}")) for n in range(3))
        await asyncio.sleep(24 * 3600)
        (summary,) = await shop.operations.queues()
        assert (summary.depth.ready, summary.held_back) == (0, (HeldBack(retry, 3),))
        assert (await shop.operations.queue(DLQ)).held_back == (HeldBack(retry, 3),)
        await connection.close()


@in_virtual_time
@pytest.mark.parametrize("live", [True, False])
async def test_queue_list_counts_messages_held_by_a_session(live: bool) -> None:
    async with open_shop(live=live) as shop:
        await shop.park(3)
        await shop.operations.open_session(DLQ)
        await asyncio.sleep(6)  # until the numbers of the management API are new
        listed = {one.queue: one.depth for one in await shop.operations.queues()}
        assert (listed[DLQ].ready, listed[DLQ].held_here, listed[DLQ].total) == (0, 3, 3)


@in_virtual_time
async def test_session_timeout_starts_when_messages_are_held() -> None:
    """Taking the messages may take minutes.

    No message is held longer than the maximum age of a session.
    """
    async with open_shop() as shop:
        await shop.publish(Message("", DLQ, b"x", properties(f"m{n}")) for n in range(3))
        shop.broker.faults.latency = 40.0
        for seconds, left in ((60.0, 60.0), (1500.0, 1300.0)):
            session = await shop.operations.open_session(
                DLQ, SessionRequest(limit=3, seconds=seconds)
            )
            now = shop.operations.clock.now()
            assert now - session.opened_at > 60.0
            assert session.expires_at - now <= left
            await asyncio.sleep(50.0)
            assert shop.operations.session(session.id).held == 3
            await shop.operations.release(session.id)
            await asyncio.sleep(300.0)  # until the broker has heard of it


@in_virtual_time
async def test_session_pages_filters_groups_and_returns_messages_in_order() -> None:
    async with open_shop() as shop:
        await shop.publish(
            Message(
                "",
                DLQ,
                b"%d" % n,
                properties(f"m{n}", {"x-final-error": ("Red", "Green", "Blue")[n % 3]}),
            )
            for n in range(50)
        )
        operations = shop.operations
        session = await operations.on_behalf_of(ANN).open_session(DLQ, SessionRequest(limit=30))
        assert (session.held, session.complete, session.by) == (30, False, "Ann")
        page = await operations.messages(session.id, limit=20)
        assert ([dead_letter.place for dead_letter in page.dead_letters], page.matching) == (
            list(range(1, 21)),
            30,
        )
        rest = await operations.messages(session.id, cursor=page.next or 0)
        assert ([dead_letter.place for dead_letter in rest.dead_letters], rest.next) == (
            list(range(21, 31)),
            None,
        )
        assert (await operations.messages(session.id, "id:m7")).dead_letters[0].message_id == "m7"
        groups = (await operations.groups(session.id, GroupBy.FINGERPRINT)).items
        assert [group.count for group in groups] == [10, 10, 10]
        ident = page.dead_letters[3].id
        assert await operations.on_behalf_of(ANN).body(session.id, ident) == b"3"
        view = await operations.message(session.id, ident)
        assert view.way is not None
        assert (view.way.exchange, view.way.routing_key, view.way.flaw) == ("", "orders", None)
        assert "Red" in view.sentence
        await operations.release(session.id)
        assert shop.bodies(DLQ) == [b"%d" % n for n in range(50)]
        with pytest.raises(SessionOver, match="released"):
            await operations.messages(session.id)
        shown = [entry.action for entry in await operations.audit()]
        assert shown == ["session.release", "message.show", "message.show", "session.open"]


@in_virtual_time
async def test_session_expires_and_returns_messages() -> None:
    """It can be renewed up to its maximum age."""
    async with open_shop() as shop:
        await shop.park(3)
        session = await shop.operations.open_session(DLQ, SessionRequest(seconds=60))
        await asyncio.sleep(50)
        await shop.operations.renew(session.id)
        await asyncio.sleep(50)
        assert shop.bodies(DLQ) == []
        await asyncio.sleep(20)
        assert len(shop.bodies(DLQ)) == 3
        with pytest.raises(SessionOver, match="expired"):
            await shop.operations.renew(session.id)
        with pytest.raises(NoSuch, match="session"):
            shop.operations.session("s-unknown")


@in_virtual_time
async def test_lost_connection_ends_session_with_reason() -> None:
    async with open_shop() as shop:
        await shop.park(3)
        session = await shop.operations.open_session(DLQ)
        shop.broker.cut()
        await asyncio.sleep(1)
        with pytest.raises(SessionOver, match="the broker requeued its messages"):
            await shop.operations.messages(session.id)
        assert len(shop.bodies(DLQ)) == 3
        assert shop.operations.sessions() == ()


@pytest.mark.parametrize("version", [V3, V4, V43])
@in_virtual_time
async def test_sessions_of_any_size_keep_quorum_queue_order(
    version: BrokerVersion,
) -> None:
    """Sizes alternate. Messages returned by an earlier session keep their position."""
    async with open_shop(version=version) as shop:
        await shop.park(400)
        for limit in (200, 50, 1, 120, 400, 7, 200):
            session = await shop.operations.open_session(DLQ, SessionRequest(limit=limit))
            assert (session.held, session.order_kept) == (limit, True)
            await shop.operations.release(session.id)
            assert shop.bodies(DLQ) == [b"%d" % n for n in range(400)]


@in_virtual_time
async def test_session_stops_at_byte_limit() -> None:
    """The last message may exceed it."""
    async with open_shop("raffle") as shop:
        await shop.publish(Message("", "raffle_dlq", bytes(100_000)) for _ in range(50))
        session = await shop.operations.open_session(
            "raffle_dlq", SessionRequest(max_bytes=1_000_000)
        )
        assert session.held == 10
        assert 1_000_000 <= session.held_bytes <= 1_000_000 + 110_000


@in_virtual_time
async def test_header_size_counts_toward_session_byte_limit() -> None:
    """Twenty thousand short headers take megabytes. Six such messages fill 16 MiB."""
    headers: dict[str, FieldValue] = {f"{n:x}": None for n in range(20_000)}
    async with open_shop("raffle") as shop:
        await shop.publish(
            Message("", "raffle_dlq", b"", Properties(headers=headers)) for _ in range(10)
        )
        window = SessionRequest(max_bytes=16 * 1024 * 1024)
        session = await shop.operations.open_session("raffle_dlq", window)
        assert session.held == 6
        assert session.held_bytes > 16 * 1024 * 1024


_LARGE = b'{"order": {"id": 1}, "rest": "' + bytes(32 * 1024).hex().encode() * 24 + b'"}'
_DEEP = b"[" * 200_000 + b"]" * 200_000  # beyond Python's own limit


@in_virtual_time
async def test_bodies_too_large_for_filter_are_reported_and_not_matched() -> None:
    """The page, the groups, the survey and the plan report them."""
    async with open_shop() as shop:
        await shop.publish(
            Message("", DLQ, body)
            for body in (_LARGE, b'{"order": {"id": 1}}', _DEEP, b'{"order": {"id": 2}}')
        )
        operations, text = shop.operations, "payload.order.id:1"
        session = await operations.open_session(DLQ)
        page = await operations.messages(session.id, text)
        assert ([dead_letter.place for dead_letter in page.dead_letters], page.not_looked_into) == (
            [2],
            2,
        )
        groups = await operations.groups(session.id, GroupBy.REASON, text)
        assert (groups.matching, groups.not_looked_into) == (1, 2)
        held = redrive(selection=Selection(session=session.id, filter=text))
        assert "2 messages have bodies too large" in (await operations.plan(held)).warnings[-1]
        await operations.release(session.id)
        survey = await survey_queue(operations, DLQ, where=text)
        assert (survey.matching, survey.not_looked_into) == (1, 2)
        plan = await operations.plan(redrive(selection=Selection(filter=text)))
        assert (plan.matching, "counted as not matching" in plan.warnings[-1]) == (1, True)


@in_virtual_time
async def test_filter_yields_to_other_tasks_between_large_bodies() -> None:
    body = b'{"a": [' + b"1," * 400_000 + b"1]}"
    async with open_shop() as shop:
        await shop.publish(Message("", DLQ, body) for _ in range(20))
        session = await shop.operations.open_session(DLQ)
        looking = asyncio.ensure_future(shop.operations.messages(session.id, "payload.b:1"))
        turns = 0
        while not looking.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 20
        assert (await looking).matching == 0


@in_virtual_time
async def test_session_beyond_bounds_of_its_request_is_refused() -> None:
    async with open_shop() as shop:
        await shop.park(3)
        with pytest.raises(BadRequest, match="limit: expected a whole number <= 10000, got 10001"):
            await shop.operations.open_session(DLQ, SessionRequest(limit=10_001))
        with pytest.raises(BadRequest, match="ttlSeconds"):
            await shop.operations.open_session(DLQ, SessionRequest(limit=1, seconds=9999))
        session = await shop.operations.open_session(DLQ, SessionRequest(limit=2))
        with pytest.raises(BadRequest, match="ttlSeconds"):
            await shop.operations.renew(session.id, 9999)
        with pytest.raises(BadFilter):
            await shop.operations.messages(session.id, "nonsense>1")
        with pytest.raises(NoSuch, match="message"):
            await shop.operations.body(session.id, "1-0000")


@in_virtual_time
async def test_quorum_queue_with_default_limit_refuses_sessions() -> None:
    """With the limit lifted, 100 sessions lose no message."""
    async with open_shop("ratatoskr", version=V4) as shop:
        await shop.park(5)
        for _ in range(100):
            with pytest.raises(UnsafeOperation, match="removes a message that was requeued 21"):
                await shop.operations.open_session(DLQ)
            with pytest.raises(UnsafeOperation):
                await survey_queue(shop.operations, DLQ)
        assert not any(message.redelivered for message in shop.queue(DLQ).ready)
        detail = await shop.operations.queue(DLQ)
        assert (detail.limit, detail.can_lift, detail.cost.price) == (20, True, Price.REFUSED)
        for _ in range(100):
            session = await shop.operations.open_session(DLQ, SessionRequest(lift=True))
            await shop.operations.release(session.id)
        assert shop.bodies(DLQ) == [b"%d" % n for n in range(5)]
        assert (await shop.operations.queue(DLQ)).limit_lifted
        with pytest.raises(
            UnsafeOperation, match=r"5 messages of 'orders\.dlq' were returned up to 101"
        ):
            await shop.operations.restore_limit(DLQ)
        assert (await shop.operations.queue(DLQ)).limit_lifted


@in_virtual_time
async def test_sessions_return_messages_by_nack_where_nack_is_not_counted() -> None:
    """A hundred sessions, surveys and searches on RabbitMQ 4.3 count no delivery.

    A crash counts one.
    """
    async with open_shop("ratatoskr", version=V43) as shop:
        await shop.park(5)
        for _ in range(100):
            session = await shop.operations.open_session(DLQ, SessionRequest(limit=3))
            await shop.operations.release(session.id)
            assert (await survey_queue(shop.operations, DLQ)).seen == 5
        assert shop.bodies(DLQ) == [b"%d" % n for n in range(5)]
        session = await shop.operations.open_session(DLQ)
        page = await shop.operations.messages(session.id)
        assert [one.delivery_count for one in page.dead_letters] == [0] * 5
        for _ in range(9):
            shop.broker.cut()
            await asyncio.sleep(1)
            session = await shop.operations.open_session(DLQ)
        shop.broker.cut()
        await asyncio.sleep(1)
        for look in (shop.operations.open_session(DLQ), survey_queue(shop.operations, DLQ)):
            with pytest.raises(UnsafeOperation, match="already delivered 10 times"):
                await look
        assert len(shop.bodies(DLQ)) == 5


@in_virtual_time
async def test_limit_that_no_policy_can_lift_is_reported() -> None:
    """An operator policy stays in force. Before 4.0, a policy cannot remove the limit."""
    async with open_shop("ratatoskr", version=V4) as shop:
        shop.broker.set_policy(Policy("ops", ".*", {"delivery-limit": 30}), operator=True)
        with pytest.raises(UnsafeOperation, match="operator policy"):
            await shop.operations.lift_limit(DLQ)
        assert (await shop.operations.queue(DLQ)).limit == 30
    async with open_shop("ratatoskr", version=V4, live=False) as shop:
        with pytest.raises(UnsafeOperation, match="needs the management address"):
            await shop.operations.lift_limit(DLQ)


@in_virtual_time
async def test_forced_session_ignores_limit_once() -> None:
    """An unforced session stops at half of the limit."""
    async with open_shop("ratatoskr", version=V4) as shop:
        await shop.park(2)
        for _ in range(3):
            session = await shop.operations.open_session(DLQ, SessionRequest(force=True))
            await shop.operations.release(session.id)
        assert {message.returns for message in shop.queue(DLQ).ready} == {3}


@in_virtual_time
async def test_survey_counts_each_message_once_and_keeps_order() -> None:
    async with open_shop() as shop:
        await shop.publish(
            Message("", DLQ, b"x", properties(f"m{n}", {"x-final-error": f"Boom {n % 2}"}))
            for n in range(2500)
        )
        found = await survey_queue(shop.operations.on_behalf_of(ANN), DLQ, GroupBy.ERROR)
        assert (found.seen, found.matching, found.complete) == (2500, 2500, True)
        assert sum(group.count for group in found.groups) == 2500
        assert len(shop.queue(DLQ).ready) == 2500
        part = await survey_queue(shop.operations, DLQ, where="id:m1", limit=100)
        assert (part.seen, part.matching, part.complete) == (100, 1, False)
        assert [m.properties.message_id for m in shop.queue(DLQ).ready] == [
            f"m{n}" for n in range(2500)
        ]


@in_virtual_time
async def test_session_and_survey_group_by_header_or_payload_field() -> None:
    async with open_shop() as shop:
        for number in range(6):
            headers = {"x-tenant": "acme" if number % 3 else "zeta"}
            body = b'{"order": {"kind": "k%d"}}' % (number % 2)
            await shop.publish([Message("", DLQ, body, properties(f"m{number}", headers))])
        session = await shop.operations.open_session(DLQ)
        by_header = await shop.operations.groups(session.id, "header.x-tenant")
        assert [(each.key, each.count) for each in by_header.items] == [("acme", 4), ("zeta", 2)]
        await shop.operations.release(session.id)
        by_field = await survey_queue(
            shop.operations, DLQ, "payload.order.kind", "header.x-tenant:acme"
        )
        assert {each.key: each.count for each in by_field.groups} == {"k0": 2, "k1": 2}
        with pytest.raises(BadRequest, match=r"header\.NAME"):
            await survey_queue(shop.operations, DLQ, "nonsense")


@in_virtual_time
async def test_released_messages_are_counted_once() -> None:
    broker = EmbeddedBroker()
    view, connection = EmbeddedManagement(broker), await broker.connect("test")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("q.dlq"))
    for _ in range(3):
        await channel.publish(Message("", "q.dlq", b"{}"))
    looking = await connection.open_channel()
    for _ in range(3):
        await looking.get("q.dlq")
    await asyncio.sleep(6)  # the numbers of the management API are those of every fifth second
    (held,) = await view.queues("/")
    await looking.close()
    (back,) = await view.queues("/")
    assert (held.counts.ready, held.counts.unacked) == (0, 3)
    assert (back.counts.ready, back.counts.unacked, back.counts.messages) == (3, 0, 3)
    await connection.close()


@pytest.mark.parametrize("skip", [0, 20])
@in_virtual_time
async def test_queue_depth_includes_messages_held_by_sessions(skip: int) -> None:
    async with open_shop() as shop:
        await shop.park(60)
        cost = (await shop.operations.queue(DLQ)).cost
        async with walk(shop.operations.broker.new_connection, DLQ, 60, cost) as messages:
            assert len([delivery async for delivery in messages]) == 60
        session = await shop.operations.open_session(DLQ, SessionRequest(limit=10, skip=skip))
        depth = (await shop.operations.queue(DLQ)).depth
        assert (session.held, depth.total) == (10, 60)
        await shop.operations.release(session.id)
        assert (await shop.operations.queue(DLQ)).depth.total == 60


@in_virtual_time
async def test_session_is_audited_by_operations_when_opened_renewed_and_released() -> None:
    """A session that has ended is not released again."""
    async with open_shop() as shop:
        await shop.park(1)
        session = await shop.operations.open_session(DLQ)
        await shop.operations.renew(session.id)
        await shop.operations.release(session.id)
        await shop.operations.release(session.id)
        entries = await shop.operations.audit()
    actions = [entry.action for entry in reversed(entries)]
    assert actions == ["session.open", "session.renew", "session.release"]
    assert {(entry.queue, entry.details["session"]) for entry in entries} == {(DLQ, session.id)}
