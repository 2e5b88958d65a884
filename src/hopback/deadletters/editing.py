"""A changed copy of a dead letter, sent back in its place: a new message, linked to the old one."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from hopback.errors import BadRequest, UnsafeOperation
from hopback.headers.names import is_protected
from hopback.headers.rewrite import FRAME_BYTES, frame_size
from hopback.message import Message, Received
from hopback.policy.redrive import redrive_message

if TYPE_CHECKING:
    from hopback.deadletters.contract import DeadLetter
    from hopback.deadletters.requests import Edit
    from hopback.deadletters.targets import Aim
    from hopback.message import Delivery
    from hopback.policy.redrive import RedriveOccasion

__all__ = ["COPY_OF", "edited_copy"]

COPY_OF = "hopback-copy-of"
"""The header of an edited copy: the id of the message it was made from."""


def edited_copy(
    delivery: Delivery,
    letter: DeadLetter,
    edit: Edit,
    aim: Aim,
    occasion: RedriveOccasion,
    message_id: str,
) -> Message:
    """The copy as it goes back, with its own id and the id of the original beside it."""
    for name in (*edit.headers, *edit.without):
        if is_protected(name) or name == COPY_OF:
            raise BadRequest("headers", f"headers that are yours to change, got {name!r}")
    message = redrive_message(_changed(delivery, edit), aim.plan, occasion, target=aim.redrive)
    headers = {**message.properties.headers, COPY_OF: letter.message_id or letter.digest}
    properties = replace(
        message.properties, headers=MappingProxyType(headers), message_id=message_id
    )
    if frame_size(properties) > FRAME_BYTES:
        raise UnsafeOperation("the copy was not sent: its headers do not fit a frame")
    return replace(message, properties=properties)


def _changed(delivery: Delivery, edit: Edit) -> Received:
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
