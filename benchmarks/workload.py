"""The scenarios, the jobs of client processes, and their results."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

__all__ = ["BODY", "BODY_BYTES", "RETRY_TTL_MS", "Job", "Measured", "Scenario"]

BODY_BYTES = 1024
RETRY_TTL_MS = 100
_FRAME = '{"id": 1, "text": ""}'
BODY = _FRAME[:-2] + "a" * (BODY_BYTES - len(_FRAME)) + _FRAME[-2:]
"""A JSON document of exactly 1 KiB, so that all rows use the same bytes, whether they decode it or
not.
"""


class Scenario(StrEnum):
    """A kind of work."""

    CONSUME = "consume"
    CONSUME_50 = "consume-50"
    ROUND_TRIPS = "round-trips"
    PUBLISH = "publish"
    PUBLISH_ONE = "publish-one"
    MOVE = "move"
    MOVE_REAL = "move-real"
    RETRY = "retry"
    FAIL = "fail"
    PARK = "park"
    FILL = "fill"
    FLOW = "flow"
    GROUP = "group"

    @property
    def title(self) -> str:
        return _TITLES[self]


_TITLES = {
    Scenario.CONSUME: "consume + ack",
    Scenario.CONSUME_50: "consume + ack, `multiple` every 50",
    Scenario.ROUND_TRIPS: "consume + ack, the handler awaits ten HTTP round trips",
    Scenario.PUBLISH: "publish + confirm, pipelined (window 500)",
    Scenario.PUBLISH_ONE: "publish + confirm, one by one",
    Scenario.MOVE: "move: consume → confirmed publish → ack",
    Scenario.MOVE_REAL: "move of real dead letters (20 headers: `x-death`, a failure record)",
    Scenario.FAIL: "failing: record the failure, confirmed publish into a retry queue, ack",
    Scenario.PARK: "failing for the last time: confirmed publish into the dead-letter queue, ack",
    Scenario.RETRY: f"retry cycle: nack, {RETRY_TTL_MS} ms in a retry queue, back, ack",
    Scenario.FILL: "fill",
    Scenario.FLOW: "publish and consume together",
    Scenario.GROUP: "group a dead-letter queue",
}


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a client process."""

    scenario: str
    host: str
    port: int
    vhost: str
    queue: str
    target: str
    count: int
    prefetch: int = 200
    window: int = 500
    body: str = BODY
    queue_type: str = "classic"
    variant: str = ""
    profile: bool = False

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}/{self.vhost}"

    @property
    def bytes(self) -> bytes:
        return self.body.encode()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a run of a client."""

    count: int
    seconds: float
    cpu_seconds: float
    peak_kib: int = 0
    samples: tuple[tuple[int, int], ...] = ()
    """The number of messages so far and the resident memory in KiB. This is only filled if the
    memory is measured.
    """
    profile: str = ""

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_seconds / self.count * 1e6
