"""Show a message with its history, its failure and its re-drive target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.ops.brokers.targets import Aim, aim_at, target_flaw
from hopback.ops.contract.requests import BY_DESIGN
from hopback.ops.contract.values import FailureRecord, HeaderView, MessageView, WayCheck
from hopback.ops.messages.dead_letter import read_failure
from hopback.ops.messages.plain import (
    amqp_type,
    plain_headers,
    plain_payload,
    plain_properties,
    plain_text,
    plain_value,
)
from hopback.ops.messages.story import describe_failure, timeline

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.browse.session import BrowseSession


async def view_message(broker: ManagedBroker, session: BrowseSession, message: str) -> MessageView:
    """Return a message of a session, and check whether its re-drive target exists."""
    dead_letter, delivery = session.dead_letter(message), session.delivery(message)
    aim = aim_at(BY_DESIGN, delivery, dead_letter.origin, session.source)
    way, no_way = None, ""
    if isinstance(aim, Aim):
        snapshot = await broker.recent_snapshot()
        async with broker.query() as connection:
            flaw = await target_flaw(connection, aim.redrive, snapshot.live_routes())
        way = WayCheck(aim.redrive.exchange, aim.redrive.routing_key, 1, flaw)
    else:
        no_way = aim
    payload, encoding = plain_payload(delivery)
    headers, more_headers = plain_headers(delivery.properties.headers)
    return MessageView(
        dead_letter=dead_letter,
        sentence=describe_failure(dead_letter, delivery),
        timeline=timeline(delivery, dead_letter),
        failure=_failure(delivery),
        way=way,
        no_way=no_way,
        properties=plain_properties(delivery.properties),
        headers=tuple(
            HeaderView(plain_text(name), amqp_type(value), plain_value(value))
            for name, value in headers
        ),
        more_headers=more_headers,
        payload=payload,
        payload_encoding=encoding,
        payload_bytes=len(delivery.body),
        body_url=f"/admin/dlq/sessions/{session.id}/messages/{dead_letter.id}/body",
    )


def _failure(delivery: Delivery) -> FailureRecord | None:
    failure = read_failure(delivery)
    if failure is None or not (failure.type or failure.message or failure.stack):
        return None
    texts = (failure.type, failure.message, failure.frame, failure.stack, failure.host)
    return FailureRecord(*map(plain_text, texts))
