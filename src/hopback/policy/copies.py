"""Detect duplicates of a message that has already been handled.

A retry is published before the failed delivery is acknowledged. If the process or the connection
fails in between, there are two copies of the message, and both would use all remaining attempts.
"""

# A duplicate can only be dropped if the other copy has ended: either it was handled successfully,
# or its publish to the next queue was confirmed. It does not matter if the ack reached the broker.
# If it did not, the redelivered message is a duplicate as well.
#
# Duplicates are identified by their copy id, which is generated at the first failure and kept by
# all retries. Message id and body are not enough, because a producer may send the same message
# twice, and both have to be handled. This means that duplicates are not detected at the first
# attempt. A process only drops duplicates of copies that it has handled itself, since otherwise the
# last copy could be dropped.

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from hopback.headers import names

if TYPE_CHECKING:
    from hopback.message import Delivery
    from hopback.policy.reading import Reading

_NAME = names.COPY_ID.encode()


def may_be_copy(delivery: Delivery) -> bool:
    """Return True if the delivery has a copy id.

    This is called for every message, so search the encoded properties if they are available.
    """
    raw: bytes | None = getattr(delivery, "raw_properties", None)
    if raw is not None:
        return _NAME in raw
    return names.COPY_ID in delivery.properties.headers


def token_of(reading: Reading) -> bytes | None:
    """Return a token that identifies the copies of a message for an attempt, or None if there is no
    copy id.
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
    """Remembers the most recent runs of a queue that have ended."""

    __slots__ = ("_most", "_tokens")

    def __init__(self, most: int = 10_000) -> None:
        # 10,000 tokens use about 1 MB. If a token was dropped, a duplicate is handled again.
        self._most = most
        self._tokens: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, token: bytes) -> bool:
        return token in self._tokens

    def add(self, token: bytes) -> None:
        """Add a run that has ended."""
        self._tokens.pop(token, None)
        self._tokens[token] = None
        if len(self._tokens) > self._most:
            del self._tokens[next(iter(self._tokens))]
