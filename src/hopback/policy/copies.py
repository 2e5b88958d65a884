"""Detect duplicates of messages that were already handled.

A retry is published before the failed delivery is acked. If the process or connection fails in
between, the broker has two copies of the message, and both would use up all of their attempts.
"""

# A duplicate may only be dropped if the other copy has ended, i.e. it was handled successfully or
# its publish to the next queue was confirmed. It does not matter whether the broker has received
# the ack. If it has not, the redelivered message is also a duplicate. Duplicates have the same copy
# id, which is generated at the first failure and kept by all retries. The message id and the body
# can't be used for this. If a producer sends the same message twice, both have to be handled. As a
# consequence, duplicates are not detected at the first attempt. A process only drops duplicates of
# copies it has handled itself. Otherwise, the last copy could be lost.

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

    This is called for every message. The encoded properties are searched if possible, because this
    is faster.
    """
    raw: bytes | None = getattr(delivery, "raw_properties", None)
    if raw is not None:
        return _NAME in raw
    return names.COPY_ID in delivery.properties.headers


def token_of(reading: Reading) -> bytes | None:
    """Return a token that is the same for all copies of a message at an attempt. Returns None if
    there is no copy id.
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
    """Remembers which runs of a queue have ended most recently."""

    __slots__ = ("_most", "_tokens")

    def __init__(self, most: int = 10_000) -> None:
        # 10,000 tokens need about 1 MB. If a token is no longer stored, a duplicate is handled
        # again.
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
