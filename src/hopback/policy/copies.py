"""Recognise deliveries that are copies of a message whose run has already ended.

A retry is stored before the failed delivery is acked. If the process, its connection or the broker
dies in between, two copies of the message exist, and each would run all remaining attempts.
"""

# A copy may be dropped only if the other copy has ended: its handler was done, or the broker has
# confirmed its publish to the next queue. That queue then holds the message. Whether the ack
# arrived does not matter. If it did not, the redelivered message is itself such a copy.
#
# Only the copy id identifies copies: a text generated at the first failure and kept by every retry.
# Id and body are not sufficient, because a producer may send two messages that are equal in both,
# and both must run. Copies are therefore unknown at the first attempt, and for messages without an
# id. A process that has not seen a copy end drops none, because another waiting or running copy may
# be the last.

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from hopback.headers import names

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.policy.reading import Reading

_NAME = names.COPY_ID.encode()


def may_be_copy(delivery: Delivery) -> bool:
    """Whether it has a copy id. This runs for every message, so it searches the raw bytes if present."""
    raw: bytes | None = getattr(delivery, "raw_properties", None)
    if raw is not None:
        return _NAME in raw
    return names.COPY_ID in delivery.properties.headers


def token_of(reading: Reading) -> bytes | None:
    """Return a token shared only by copies of one message before the same attempt, or None if
    unknown.
    """
    known, message_id = reading.history, reading.delivery.properties.message_id
    if not known.copy_id or not message_id or reading.attempt == 1:
        return None
    parts = (
        reading.plan.queue,
        known.copy_id,
        message_id,
        reading.attempt,
        known.snoozes,
        known.redrives,
        known.redrive_job,
    )
    digest = hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace"))
    digest.update(reading.delivery.body)
    return digest.digest()


class EndedRuns:
    """The most recent ended runs of one queue in this process. The oldest are forgotten first."""

    __slots__ = ("_most", "_tokens")

    def __init__(self, most: int = 10_000) -> None:
        # 10,000 tokens take about 1 MB. A copy whose token was forgotten runs again, so no message
        # is lost.
        self._most = most
        self._tokens: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, token: bytes) -> bool:
        return token in self._tokens

    def add(self, token: bytes) -> None:
        """Remember that this run has ended, as the most recent one."""
        self._tokens.pop(token, None)
        self._tokens[token] = None
        if len(self._tokens) > self._most:
            del self._tokens[next(iter(self._tokens))]
