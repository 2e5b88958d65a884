"""What a failed publish means for a job: try again, give this message up, or stop. Pure."""

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

__all__ = ["Verdict", "may_pass", "verdict_on"]


class Verdict(StrEnum):
    """What to do about a message that was not confirmed when it was sent alone."""

    AGAIN = "again"
    ITS_OWN = "its own"
    """The message itself is what the broker, or the wire, will not have; others may pass."""
    STOP = "stop"
    """No other would fare better, or nobody knows what became of it."""


def verdict_on(failed: HopbackError, ended: BrokerError | None) -> Verdict:
    """`failed` is what its sender was told, `ended` what closed the channel, if something did."""
    if isinstance(ended, PreconditionFailed):
        return Verdict.ITS_OWN
    if isinstance(ended, ChannelClosed):
        return Verdict.STOP
    if isinstance(failed, ConfirmTimeout):
        # It may have been stored; sending again and again would multiply it.
        return Verdict.STOP
    if isinstance(failed, PublishFailed | ConnectionLost | ConnectionFailed):
        return Verdict.AGAIN
    if isinstance(failed, BrokerError) and not isinstance(failed, ChannelClosed):
        # The wire refused to encode it: too large a header, a name beyond 255 bytes.
        return Verdict.ITS_OWN
    return Verdict.STOP


def may_pass(failed: HopbackError) -> bool:
    """Whether it is only that the broker is away: then waiting for it may help."""
    if isinstance(failed, ManagementError):
        return failed.status == 0 or failed.status >= 500
    away = isinstance(failed, ConnectionLost | ConnectionFailed)
    return away and not isinstance(failed, LoginRefused)
