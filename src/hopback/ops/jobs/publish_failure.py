"""Classify a failed publish: repeat it, leave the message, or stop the job. Pure."""

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
    """Reaction of a job to the failed publish of a message that was sent alone."""

    SEND_AGAIN = "send again"
    LEAVE = "leave"
    """The broker or the wire layer does not accept this message. Others may succeed."""
    STOP = "stop"
    """Other messages would also fail, or it is unknown whether the broker has stored the message."""


def after_failure(failed: HopbackError, ended: BrokerError | None) -> AfterFailure:
    """`failed` is the error of the publish, `ended` the error that closed the channel, if any."""
    if isinstance(ended, PreconditionFailed):
        return AfterFailure.LEAVE
    if isinstance(ended, ChannelClosed):
        return AfterFailure.STOP
    if isinstance(failed, ConfirmTimeout):
        # The broker may have stored it. Each repetition could add a copy.
        return AfterFailure.STOP
    if isinstance(failed, PublishFailed | ConnectionLost | ConnectionFailed):
        return AfterFailure.SEND_AGAIN
    if isinstance(failed, BrokerError) and not isinstance(failed, ChannelClosed):
        # The wire layer cannot encode it: too large a header, a name of more than 255 bytes.
        return AfterFailure.LEAVE
    return AfterFailure.STOP


def is_away(failed: HopbackError) -> bool:
    """Whether the broker cannot be reached, perhaps temporarily."""
    if isinstance(failed, ManagementError):
        return failed.status == 0 or failed.status >= 500
    is_lost = isinstance(failed, ConnectionLost | ConnectionFailed)
    return is_lost and not isinstance(failed, LoginRefused)
