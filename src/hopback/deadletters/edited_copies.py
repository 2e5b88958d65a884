"""Sending a changed copy of one message back."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from hopback.deadletters.actions import edited_copy
from hopback.deadletters.targets import Aim, aim_at, target_flaw
from hopback.errors import BadRequest, UnsafeOperation
from hopback.policy.redrive import RedriveOccasion

if TYPE_CHECKING:
    from hopback.deadletters.live import LiveQueues
    from hopback.deadletters.requests import Edit, Target, Who
    from hopback.deadletters.session import BrowseSession

__all__ = ["send_copy"]


async def send_copy(
    live: LiveQueues,
    held: BrowseSession,
    message: str,
    edit: Edit,
    target: Target,
    person: Who,
    now: float,
) -> str:
    """Send a changed copy of a message that a session holds; its new message id."""
    dead_letter, delivery = held.dead_letter(message), held.delivery(message)
    routes = (await live.snapshot()).routes()
    aim = aim_at(target, delivery, dead_letter.origin, held.source, routes)
    if not isinstance(aim, Aim):
        raise BadRequest("target", aim)
    copy = str(uuid4())
    occasion = RedriveOccasion(now, f"edit-{copy}", person.id, person.name)
    changed = edited_copy(delivery, dead_letter, edit, aim, occasion, copy)
    async with live.connected() as connection:
        flaw = await target_flaw(connection, aim.redrive)
        if flaw is not None:
            raise UnsafeOperation(f"the copy was not sent: {flaw}")
        await (await connection.open_channel()).publish(changed)
    return copy
