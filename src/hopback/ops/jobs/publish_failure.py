"""Decide whether to retry after a failed publish, to leave the message, or to stop the job.

This module is pure.
"""

from __future__ import annotations

from enum import StrEnum

from hopback.errors import (
    BrokerError,
    ChannelClosed,
    ConfirmTimeout,
    ConnectionFailed,
    ConnectionLost,
    HopbackError,
    LoginRefused,
    ManagementError,
    PreconditionFailed,
    PublishFailed,
)


class AfterFailure(StrEnum):
    """What a job does after a failed publish of a message that was sent alone."""

    SEND_AGAIN = "send again"
    LEAVE = "leave"
    """The broker or the wire layer does not accept this message. Other messages may be accepted."""
    STOP = "stop"
    """Other messages would also fail, or it is unknown whether the broker has stored the message."""


def after_failure(failed: HopbackError, ended: BrokerError | None) -> AfterFailure:
    """Decide what to do. `failed` is the error, and `ended` is the error that closed the channel,
    if any.
    """
    if isinstance(ended, PreconditionFailed):
        return AfterFailure.LEAVE
    if isinstance(ended, ChannelClosed):
        return AfterFailure.STOP
    if isinstance(failed, ConfirmTimeout):
        # The broker may have stored the message, so each retry could add a copy.
        return AfterFailure.STOP
    if isinstance(failed, PublishFailed | ConnectionLost | ConnectionFailed):
        return AfterFailure.SEND_AGAIN
    if isinstance(failed, BrokerError) and not isinstance(failed, ChannelClosed):
        # The wire layer cannot encode the message, for example because of a large header or a long
        # name.
        return AfterFailure.LEAVE
    return AfterFailure.STOP


def is_away(failed: HopbackError) -> bool:
    """Return whether the broker is unavailable, perhaps for a short time."""
    if isinstance(failed, ManagementError):
        return failed.status == 0 or failed.status >= 500
    is_lost = isinstance(failed, ConnectionLost | ConnectionFailed)
    return is_lost and not isinstance(failed, LoginRefused)
