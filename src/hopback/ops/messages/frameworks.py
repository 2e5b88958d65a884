"""Read failures that other frameworks have recorded in headers.

There are readers for MassTransit, NServiceBus, Spring and Symfony. Another one knows the common
header names of consumers without a framework. Invalid values are ignored.

The functions are pure and accept any input.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from hopback.headers import Failure, add_http_status, clip, failure_from_reason
from hopback.ops.messages.stack_traces import root_cause

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.fields import Headers


_TEXT_BYTES = 1024  # bytes of an error message, as in Hopback's own records. The rest is cut off.
_LONGEST = 64 * 1024  # characters of a header that are read. Longer stacks are repetitive.
_MOST_WRAPPED = 10  # nested exceptions that are read. Longer chains are mistakes or attacks.
_STACK_BYTES = 16 * 1024  # bytes of a stack that are kept
_MANY_RETRIES = 1_000_000  # retries. A larger number is probably not a counter, so it is ignored.
_SYMFONY = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\"


@dataclass(frozen=True, slots=True)
class ForeignFailure:
    """A failure recorded by another framework, with the queue and the number of retries."""

    framework: str
    failure: Failure
    queue: str = ""
    retries: int = 0


_Reader: TypeAlias = "Callable[[Headers], ForeignFailure | None]"


def foreign_failure(headers: Headers) -> ForeignFailure | None:
    """Return the failure that another framework has recorded, or None if there is none."""
    if not headers:
        return None
    return next((found for read in _READERS if (found := read(headers)) is not None), None)


def _mass_transit(headers: Headers) -> ForeignFailure | None:
    kind = _text(headers, "MT-Fault-ExceptionType")
    if not kind and not _text(headers, "MT-Reason"):
        return None
    return ForeignFailure(
        "MassTransit",
        _failure(
            kind or f"MassTransit {_text(headers, 'MT-Reason')}",
            _text(headers, "MT-Fault-Message"),
            _text(headers, "MT-Fault-StackTrace"),
            _moment(_text(headers, "MT-Fault-Timestamp")),
        ),
        # the last segment of an address such as rabbitmq://host/vhost/queue?durable=true
        _text(headers, "MT-Fault-InputAddress").partition("?")[0].rstrip("/").rpartition("/")[2],
        read_retries(headers.get("MT-Fault-RetryCount")),
    )


def _nservicebus(headers: Headers) -> ForeignFailure | None:
    kind = _text(headers, "NServiceBus.ExceptionInfo.ExceptionType")
    if not kind:
        return None
    return ForeignFailure(
        "NServiceBus",
        _failure(
            kind,
            _text(headers, "NServiceBus.ExceptionInfo.Message"),
            _text(headers, "NServiceBus.ExceptionInfo.StackTrace"),
            _moment(_text(headers, "NServiceBus.TimeOfFailure"), "%Y-%m-%d %H:%M:%S:%f Z"),
        ),
        _text(headers, "NServiceBus.FailedQ").split("@")[0],
        max(
            read_retries(headers.get(name))
            for name in ("NServiceBus.FLRetries", "NServiceBus.Retries")
        ),
    )


def _spring(headers: Headers) -> ForeignFailure | None:
    stack = _text(headers, "x-exception-stacktrace")
    message = _text(headers, "x-exception-message")
    if not stack and (not message or _first_of(headers, _KINDS)):
        return None  # Spring does not write a header with the type
    kind = stack.partition("\n")[0].partition(":")[0].strip()
    return ForeignFailure("Spring", _failure(kind, message, stack, 0.0))


def _symfony(headers: Headers) -> ForeignFailure | None:
    error = _stamp(headers, "ErrorDetailsStamp")
    if not error:
        return None
    kind, message = _string(error.get("exceptionClass")), _string(error.get("exceptionMessage"))
    stack = ""
    inner = error.get("flattenException")
    for _ in range(_MOST_WRAPPED):  # find the innermost exception
        if not isinstance(inner, dict) or not _string(inner.get("class")):
            break
        kind, message = _string(inner.get("class")), _string(inner.get("message"))
        stack = _string(inner.get("traceAsString") or inner.get("trace_as_string"))
        inner = inner.get("previous")
    again = _stamp(headers, "RedeliveryStamp")
    return ForeignFailure(
        "Symfony",
        _failure(kind, message, stack, _moment(_string(again.get("redeliveredAt")))),
        _string(_stamp(headers, "SentToFailureTransportStamp").get("originalReceiverName")),
        read_retries(again.get("retryCount")),
    )


_KINDS = (
    "error_class", "error-class", "x-error-class", "x-error-type", "x-exception-type", "x-exception",
    "exception-type", "exception_type", "exception", "error_type", "x-exception-class",
)  # fmt: skip
_MESSAGES = (
    "x-last-error", "last-error", "last_error", "error_message", "error-message", "x-error-message",
    "x-error", "x-error-reason", "error", "x-failure-reason", "failure-reason", "failure_reason",
    "x-exception-message", "exception-message", "exception_message", "x-failure-message",
)  # fmt: skip
_STACKS = (
    "x-exception-stacktrace", "x-stack-trace", "x-stacktrace", "stacktrace", "stack-trace", "stack_trace",
    "x-error-stack", "error-stack", "error_stack", "stack", "error_backtrace", "backtrace", "traceback",
)  # fmt: skip
_HOME_MADE = frozenset((*_MESSAGES, *_STACKS))


def _generic_consumer(headers: Headers) -> ForeignFailure | None:
    """Read the failure of a consumer without a framework, which uses common header names."""
    # true for most messages, of which a survey may read a million
    if headers.keys().isdisjoint(_HOME_MADE):
        return None
    message, stack = _first_of(headers, _MESSAGES), _first_of(headers, _STACKS)
    if not message and not stack:
        return None
    kind = _first_of(headers, _KINDS)
    if not kind:
        # `TimeoutError: no answer` and `app.Refused: 3` contain a type, but `no answer from x: 3`
        # does not.
        for text in filter(None, (message, stack)):
            named = text.partition("\n")[0].partition(":")
            if named[1] and named[0].isprintable() and " " not in named[0].strip():
                kind = named[0].strip()
                if text is message:
                    message = message.partition(":")[2].strip() or message
                break
    return ForeignFailure("its consumer", _failure(kind, message, stack, 0.0))


def _first_of(headers: Headers, names: tuple[str, ...]) -> str:
    for name in names:
        if name in headers and (text := _text(headers, name)):
            return text
    return ""


_READERS: tuple[_Reader, ...] = (_mass_transit, _nservicebus, _spring, _symfony, _generic_consumer)


def _failure(kind: str, message: str, stack: str, last: float) -> Failure:
    """Create the failure for the root cause. Its fingerprint is derived from type and frame, or
    type and message.
    """
    cause = root_cause(kind, message, stack)
    made = failure_from_reason(
        cause.frame or cause.message, kind=add_http_status(cause.type, cause.message)
    )
    return Failure(
        type=clip(cause.type, 255),
        message=clip(cause.message, _TEXT_BYTES),
        fingerprint=made.fingerprint,
        frame=clip(cause.frame, 255),
        stack=clip(stack, _STACK_BYTES),
        last=last,
        first=last,
    )


def _text(headers: Headers, name: str) -> str:
    return _string(headers.get(name))


def _string(value: object) -> str:
    if isinstance(value, bytes):
        value = value[:_LONGEST].decode("utf-8", "replace")
    return value[:_LONGEST] if isinstance(value, str) else ""


def read_retries(value: object) -> int:
    """Return a number of retries, or 0 if the value is not a count. Some frameworks write it as text."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 7:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MANY_RETRIES:
        return int(value)
    return 0


def _stamp(headers: Headers, name: str) -> dict[str, object]:
    """Return the last stamp of a kind."""
    text = _text(headers, _SYMFONY + name)
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return {}
    last = found[-1] if isinstance(found, list) and found else found
    return last if isinstance(last, dict) else {}


def _moment(text: str, form: str = "") -> float:
    try:
        if form:
            moment = datetime.strptime(text, form).replace(tzinfo=UTC)
        else:
            moment = datetime.fromisoformat(text)
            moment = moment.replace(tzinfo=moment.tzinfo or UTC)
        return max(moment.timestamp(), 0.0)
    except (ValueError, OverflowError, OSError):
        return 0.0
