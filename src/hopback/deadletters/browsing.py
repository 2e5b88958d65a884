"""The browse sessions that are open, and what is shown of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.deadletters.cost import Cost
    from hopback.deadletters.letters import Letter
    from hopback.deadletters.plans import WayCheck
    from hopback.deadletters.requests import Who
    from hopback.deadletters.sessions import Group
    from hopback.deadletters.stories import Event
    from hopback.headers import Failure
    from hopback.message import Delivery

__all__ = ["MessageView", "SessionView", "Survey"]


@dataclass(frozen=True, slots=True)
class SessionView:
    """A browse session as it is now. `complete`: it holds everything that was ready."""

    id: str
    queue: str
    held: int
    held_bytes: int
    opened_at: float
    expires_at: float
    complete: bool
    cost: Cost
    by: Who


@dataclass(frozen=True, slots=True)
class MessageView:
    """One message with everything about it.

    `sentence` says what happened; `failure` is the consumer's own record with its stack, if there is
    one. `way` is where a re-drive would send it by default, or None with `no_way` saying why.
    """

    letter: Letter
    delivery: Delivery
    sentence: str
    timeline: tuple[Event, ...]
    failure: Failure | None
    way: WayCheck | None
    no_way: str = ""


@dataclass(frozen=True, slots=True)
class Survey:
    """The groups of a whole queue, and how many messages were looked at."""

    queue: str
    groups: tuple[Group, ...]
    seen: int
    matching: int
    complete: bool
