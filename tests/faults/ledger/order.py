"""Orders: messages that specify how their handler treats them."""

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
    """The treatment of an order by its handler."""

    DONE = "done"
    FAIL_ONCE = "fail-once"
    FAIL_TWICE = "fail-twice"
    DOOMED = "doomed"
    """It fails until it is parked. After a re-drive it succeeds."""
    HOPELESS = "hopeless"
    """It is parked at once. After a re-drive it succeeds."""
    SNOOZE = "snooze"
    POISON = "poison"
    """It kills the process that handles it, every time."""

    @property
    def failures(self) -> int:
        """Number of runs that fail before one succeeds. Doomed orders always fail."""
        return {"fail-once": 1, "fail-twice": 2}.get(self.value, 0)

    @property
    def is_parked(self) -> bool:
        """Whether it ends in the dead-letter queue if it is not re-driven."""
        return self in (Fate.DOOMED, Fate.HOPELESS, Fate.POISON)


@dataclass(frozen=True, slots=True)
class Order:
    """One message. `to` are the queues that get it, `pause` how long its handler takes in ms."""

    number: int
    to: tuple[str, ...]
    fate: Fate = Fate.DONE
    key: str = "-"
    pause: int = 0

    @property
    def id(self) -> str:
        """Its message id."""
        return str(self.number)

    def message(self, exchange: str, routing_key: str, size: int = 0) -> Message:
        """The order as a message of at least `size` bytes."""
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
        """The order of a body."""
        number, to, fate, key, pause, _ = body.decode().split(" ", 5)
        return cls(int(number), tuple(to.split(",")), Fate(fate), key, int(pause))

    @staticmethod
    def is_one(body: bytes) -> bool:
        """Whether it is an order. A re-drive may publish an event of a different form."""
        return body[:1].isdigit()

    def is_unaltered(self, delivery: Delivery) -> bool:
        """Whether body, properties and headers are those that it was sent with."""
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
    """A thousand fates of which that share fails in some way, spread evenly."""
    bad = (Fate.FAIL_ONCE, Fate.FAIL_ONCE, Fate.FAIL_TWICE, Fate.DOOMED, Fate.HOPELESS, Fate.SNOOZE)
    count = round(1000 * failing)
    found = [Fate.DONE] * 1000
    for at in range(count):
        found[at * 1000 // count] = bad[at % len(bad)]
    return tuple(found)
