"""Orders are messages that specify how their handler treats them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hopback.message import Message, Properties

if TYPE_CHECKING:
    from typing import Self

    from hopback.message import Delivery

__all__ = ["Fate", "Order", "fates"]


class Fate(StrEnum):
    """How the handler treats an order."""

    DONE = "done"
    FAIL_ONCE = "fail-once"
    FAIL_TWICE = "fail-twice"
    DOOMED = "doomed"
    """The order fails until it is parked. After a re-drive, it succeeds."""
    HOPELESS = "hopeless"
    """The order is parked immediately. After a re-drive, it succeeds."""
    SNOOZE = "snooze"
    POISON = "poison"
    """The order always kills the process that handles it."""

    @property
    def failures(self) -> int:
        """The number of runs that fail before one succeeds. Doomed orders always fail."""
        return {"fail-once": 1, "fail-twice": 2}.get(self.value, 0)

    @property
    def is_parked(self) -> bool:
        """Whether the order ends up in the dead-letter queue if it is not re-driven."""
        return self in (Fate.DOOMED, Fate.HOPELESS, Fate.POISON)


@dataclass(frozen=True, slots=True)
class Order:
    """A message. `to` lists the queues that receive it. Its handler takes `pause` ms."""

    number: int
    to: tuple[str, ...]
    fate: Fate = Fate.DONE
    key: str = "-"
    pause: int = 0

    @property
    def id(self) -> str:
        """The message id."""
        return str(self.number)

    def message(self, exchange: str, routing_key: str, size: int = 0) -> Message:
        """Return the order as a message of at least `size` bytes."""
        text = f"{self.number} {','.join(self.to)} {self.fate} {self.key} {self.pause}"
        body = f"{text} {'x' * max(0, size - len(text))}".encode()
        properties = Properties(
            content_type="text/plain",
            headers={"ledger-mark": zlib.crc32(body), "ledger-text": f"order {self.number}"},
            delivery_mode=2,
            correlation_id=f"order-{self.number}",
            message_id=self.id,
            type="ledger.order",
        )
        return Message(exchange, routing_key, body, properties)

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Parse the body of a message."""
        number, to, fate, key, pause, _ = body.decode().split(" ", 5)
        return cls(int(number), tuple(to.split(",")), Fate(fate), key, int(pause))

    @staticmethod
    def is_one(body: bytes) -> bool:
        """Return True if the body is an order. A re-drive may publish other events."""
        return body[:1].isdigit()

    def is_unaltered(self, delivery: Delivery) -> bool:
        """Return True if body, properties and headers are the same as when the message was sent."""
        found = delivery.properties
        return (
            found.headers.get("ledger-mark") == zlib.crc32(delivery.body)
            and found.headers.get("ledger-text") == f"order {self.number}"
            and found.message_id == self.id
            and found.correlation_id == f"order-{self.number}"
            and found.type == "ledger.order"
            and found.content_type == "text/plain"
        )


def fates(failing: float) -> tuple[Fate, ...]:
    """Return a thousand fates. The given share of them fails in some way. These are spread evenly."""
    bad = (Fate.FAIL_ONCE, Fate.FAIL_ONCE, Fate.FAIL_TWICE, Fate.DOOMED, Fate.HOPELESS, Fate.SNOOZE)
    count = round(1000 * failing)
    found = [Fate.DONE] * 1000
    for at in range(count):
        found[at * 1000 // count] = bad[at % len(bad)]
    return tuple(found)
