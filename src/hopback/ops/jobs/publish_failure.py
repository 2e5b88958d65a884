"""Decide what a failed publish means: for its message alone, for the whole job, or for now only. Pure."""

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
    """What to do about a message that was not confirmed when it was sent alone."""

    AGAIN = "again"
    ITS_OWN = "its own"
    """The message itself is what the broker, or the wire, does not accept; others may pass."""
    STOP = "stop"
    """No other would do better, or it is not known what became of it."""


def after_failure(failed: HopbackError, ended: BrokerError | None) -> AfterFailure:
    """`failed` is what its sender was told, `ended` what closed the channel, if something did."""
    if isinstance(ended, PreconditionFailed):
        return AfterFailure.ITS_OWN
    if isinstance(ended, ChannelClosed):
        return AfterFailure.STOP
    if isinstance(failed, ConfirmTimeout):
        # It may have been stored; sending again and again would multiply it.
        return AfterFailure.STOP
    if isinstance(failed, PublishFailed | ConnectionLost | ConnectionFailed):
        return AfterFailure.AGAIN
    if isinstance(failed, BrokerError) and not isinstance(failed, ChannelClosed):
        # The wire refused to encode it: too large a header, a name beyond 255 bytes.
        return AfterFailure.ITS_OWN
    return AfterFailure.STOP


def may_pass(failed: HopbackError) -> bool:
    """Whether it is only that the broker is away: then waiting for it may help."""
    if isinstance(failed, ManagementError):
        return failed.status == 0 or failed.status >= 500
    away = isinstance(failed, ConnectionLost | ConnectionFailed)
    return away and not isinstance(failed, LoginRefused)
