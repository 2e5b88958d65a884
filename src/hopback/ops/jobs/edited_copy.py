"""Send an edited copy of a message. The original stays in its queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import uuid4

from hopback.errors import BadRequest, BrokerError, UnsafeOperation
from hopback.fields import MAX_DEPTH, field_text, nests_deeper, text_bytes
from hopback.headers.names import is_protected
from hopback.headers.rewrite import FRAME_BYTES, frame_size
from hopback.message import Delivery, Received
from hopback.ops.brokers.targets import Aim, aim_at, target_flaw
from hopback.ops.jobs.publish_failure import AfterFailure, after_failure
from hopback.policy.redrive import RedriveOccasion, redrive_message

if TYPE_CHECKING:
    from hopback.ops.brokers.managed_broker import ManagedBroker
    from hopback.ops.browse.session import BrowseSession
    from hopback.ops.contract.requests import Edit, EditRequest, Who

COPY_OF = "hopback-copy-of"
"""The header of an edited copy that contains the id of the original."""


_SHORT_TEXT = 255
"""Maximum bytes of header names and short properties in AMQP."""
_INTEGERS = range(-(2**63), 2**63)


def _check_edit(edit: Edit) -> None:
    """Raise BadRequest if a header or a property cannot be set."""
    for name in (*edit.headers, *edit.without):
        if is_protected(name) or name == COPY_OF:
            raise BadRequest("headers", f"headers that can be changed, got {name!r}")
    if text_bytes(edit.content_type or "") > _SHORT_TEXT:
        raise BadRequest("contentType", f"at most {_SHORT_TEXT} bytes")
    for name, value in edit.headers.items():
        if text_bytes(name) > _SHORT_TEXT:
            raise BadRequest("headers", f"names of at most {_SHORT_TEXT} bytes, got {name!r}")
        if nests_deeper(value, MAX_DEPTH):
            raise BadRequest("headers", f"{name!r} nested at most {MAX_DEPTH} deep")
        inner = [value]
        while inner:
            found = inner.pop()
            if isinstance(found, Mapping):
                inner += found.values()
            elif isinstance(found, list):
                inner += found
            elif isinstance(found, int) and found not in _INTEGERS:
                raise BadRequest("headers", f"integers of 64 bits in {name!r}")


def change_delivery(delivery: Delivery, edit: Edit) -> Received:
    """Apply an edit to a delivery."""
    properties = delivery.properties
    kept = {name: value for name, value in properties.headers.items() if name not in edit.without}
    return Received(
        delivery.queue,
        delivery.exchange,
        delivery.routing_key,
        delivery.body if edit.body is None else edit.body,
        replace(
            properties,
            headers=MappingProxyType({**kept, **edit.headers}),
            content_type=(
                properties.content_type if edit.content_type is None else edit.content_type
            ),
        ),
        delivery.redelivered,
        delivery.tag,
    )


async def send_copy(
    broker: ManagedBroker,
    held: BrowseSession,
    dead_letter_id: str,
    request: EditRequest,
    person: Who,
) -> str:
    """Send an edited copy of a message in a session, and return the message id of the copy.

    The copy has a new message id and a header with the id of the original.
    """
    dead_letter, delivery = held.dead_letter(dead_letter_id), held.delivery(dead_letter_id)
    routes = (await broker.snapshot()).known_routes()
    aim = aim_at(request.target, delivery, dead_letter.origin, held.source, routes)
    if not isinstance(aim, Aim):
        raise BadRequest("target", aim)
    copy = str(uuid4())
    occasion = RedriveOccasion(broker.clock.now(), f"edit-{copy}", person.id, person.name)
    _check_edit(request.edit)
    changed = change_delivery(delivery, request.edit)
    message = redrive_message(changed, aim.plan, occasion, target=aim.redrive)
    original = field_text(dead_letter.message_id or dead_letter.digest)
    headers = MappingProxyType({**message.properties.headers, COPY_OF: original})
    properties = replace(message.properties, headers=headers, message_id=copy)
    if frame_size(properties) > FRAME_BYTES:
        raise UnsafeOperation("the copy was not sent: its headers do not fit a frame")
    async with broker.query() as connection:
        flaw = await target_flaw(connection, aim.redrive)
    if flaw is not None:
        raise UnsafeOperation(f"the copy was not sent: {flaw}")
    # Use a new connection, because a broker with an alarm does not read from connections that
    # publish.
    try:
        async with broker.new_connection("hopback edited copy") as publishing:
            await (await publishing.open_channel()).publish(replace(message, properties=properties))
    except BrokerError as failed:
        if after_failure(failed, failed) is AfterFailure.LEAVE:
            raise BadRequest("edit", f"a message that AMQP can carry; {failed}") from failed
        raise
    return copy
