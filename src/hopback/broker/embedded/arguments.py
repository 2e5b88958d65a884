"""Validate and compare the arguments of queues and exchanges like RabbitMQ does."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hopback.broker.embedded.refusal import Refusal, precondition_failed, type_name
from hopback.fields import FieldValue, Headers, Timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hopback.broker.embedded.profile import Profile

LONGEST_MS = 315_360_000_000
"""Ten years, the maximum accepted by RabbitMQ."""

_Check: TypeAlias = "Callable[[FieldValue], str | None]"


def integer_problem(value: FieldValue, *, least: int | None = None) -> str | None:
    """Describe why a value is not a valid integer, using RabbitMQ's wording."""
    if isinstance(value, bool | Timestamp) or not isinstance(value, int):
        return f'"expected integer, got {type_name(value)}"'
    if least is not None and value < 0:
        return f"{{value_negative,{value}}}"
    if least is not None and value < least:
        return f"{{value_zero,{value}}}"
    return None


def _non_negative(value: FieldValue) -> str | None:
    return integer_problem(value, least=0)


def _duration(value: FieldValue, least: int = 0) -> str | None:
    problem = integer_problem(value, least=least)
    if problem is None and isinstance(value, int) and value > LONGEST_MS:
        return f"{{value_too_large,{value}}}"
    return problem


def _expiry(value: FieldValue) -> str | None:
    return _duration(value, least=1)


def _priority(value: FieldValue) -> str | None:
    problem = integer_problem(value, least=0)
    if problem is None and isinstance(value, int) and value > 255:
        return f"{{max_value_exceeded,{value}}}"
    return problem


def _string(value: FieldValue) -> str | None:
    return None if isinstance(value, str) else f"{{unacceptable_type,{type_name(value)}}}"


def _boolean(value: FieldValue) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{type_name(value)}}}"


def _one_of(problem: str, *accepted: str) -> _Check:
    def check(value: FieldValue) -> str | None:
        return _string(value) or (None if value in accepted else problem.format(value))

    return check


# The order in which RabbitMQ checks arguments. The same ones are compared when a queue is
# redeclared.
_CHECKS: Mapping[str, _Check] = {
    "x-expires": _expiry,
    "x-message-ttl": _duration,
    "x-dead-letter-exchange": lambda _value: None,
    "x-dead-letter-routing-key": _string,
    "x-dead-letter-strategy": _one_of("invalid_dlx_strategy", "at-most-once", "at-least-once"),
    "x-max-length": _non_negative,
    "x-max-length-bytes": _non_negative,
    "x-max-in-memory-length": _non_negative,
    "x-max-in-memory-bytes": _non_negative,
    "x-max-priority": _priority,
    "x-overflow": _one_of("invalid_overflow", "drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": _one_of("\"unsupported queue mode '{}'\"", "default", "lazy"),
    "x-queue-version": lambda value: (
        None if value in (1, 2) else f"\"unsupported queue version '{_shown(value)}'\""
    ),
    "x-single-active-consumer": _boolean,
    "x-queue-type": _one_of("\"unsupported queue type '{}'\"", "classic", "quorum", "stream"),
    "x-quorum-initial-group-size": _non_negative,
    "x-delivery-limit": lambda _value: None,
    "x-max-age": _string,
    "x-stream-max-segment-size-bytes": _non_negative,
}
_CLASSIC_ONLY = frozenset({"x-max-priority", "x-queue-mode", "x-queue-version"})
_QUORUM_ONLY = frozenset(
    {
        "x-dead-letter-strategy",
        "x-delivery-limit",
        "x-quorum-initial-group-size",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
    }
)
_STREAM_ONLY = frozenset({"x-max-age", "x-stream-max-segment-size-bytes"})
_REFUSED = {"classic": _QUORUM_ONLY | _STREAM_ONLY, "quorum": _CLASSIC_ONLY | _STREAM_ONLY}


def check_queue_arguments(place: str, kind: str, arguments: Headers, profile: Profile) -> None:
    """Refuse invalid arguments of a queue. Unknown arguments are accepted.

    `place` is the name of the queue as shown in errors.
    """
    exchange = arguments.get("x-dead-letter-exchange", "")
    if not isinstance(exchange, str):
        found = f"invalid type '{type_name(exchange)}' for arg 'x-dead-letter-exchange'"
        raise precondition_failed(f"{found} in {place}")
    for name, check in _CHECKS.items():
        problem = check(arguments[name]) if name in arguments else None
        if problem is not None:
            raise precondition_failed(f"invalid arg '{name}' for {place}: {problem}")
    if "x-dead-letter-routing-key" in arguments and "x-dead-letter-exchange" not in arguments:
        raise precondition_failed(
            f"invalid arg 'x-dead-letter-routing-key' for {place}: routing_key_but_no_dlx_defined"
        )
    version = arguments.get("x-queue-version")
    if isinstance(version, int) and version < profile.oldest_queue_version:
        raise precondition_failed(
            f"invalid arg 'x-queue-version' for {place}: \"unsupported queue version '{version}'\""
        )
    # Arguments that are only valid for the other queue type.
    refused = _REFUSED[kind]
    if kind == "classic" and profile.consumer_timeout_cancels:
        refused |= {"x-consumer-timeout"}
    for name in arguments:
        if name in refused:
            raise precondition_failed(
                f"invalid arg '{name}' for {place} of queue type rabbit_{kind}_queue"
            )


def inequivalent(place: str, name: str, received: object, current: object) -> Refusal:
    """Raise 406 for a property that differs from the existing object."""
    return precondition_failed(
        f"inequivalent arg '{name}' for {place}:"
        f" received '{_shown(received)}' but current is '{_shown(current)}'"
    )


def inequivalent_argument(
    place: str, received: Headers, current: Headers, names: tuple[str, ...] = tuple(_CHECKS)
) -> Refusal | None:
    """Find the first argument that differs, in the order in which RabbitMQ compares them."""
    for name in names:
        new, old = _seen(received, name), _seen(current, name)
        if new == old and isinstance(new, bool) == isinstance(old, bool):
            continue
        if new is None or old is None:
            said = f"received {_format_value(new)} but current is {_format_value(old)}"
            return precondition_failed(f"inequivalent arg '{name}' for {place}: {said}")
        return inequivalent(place, name, new, old)
    return None


def _seen(arguments: Headers, name: str) -> FieldValue:
    """Normalise an argument for comparison. An explicit classic type is the same as no type."""
    value = arguments.get(name)
    return None if name == "x-queue-type" and value == "classic" else value


def _format_value(value: FieldValue) -> str:
    return "none" if value is None else f"the value '{_shown(value)}' of type '{type_name(value)}'"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_expiration(text: str) -> int:
    """Parse the `expiration` of a message in milliseconds. Raises 406 if the broker would not
    accept it.
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    length = len(digits) - len(digits.lstrip("0123456789"))
    if not length:
        raise _bad_expiration(text, "no_integer")
    if length < len(digits):
        raise _bad_expiration(text, f'{{leftover_string,"{digits[length:]}"}}')
    problem = _duration(int(text))
    if problem is not None:
        raise _bad_expiration(text, problem)
    return int(text)


def _bad_expiration(text: str, problem: str) -> Refusal:
    return precondition_failed(f"invalid expiration '{text}': {problem}")
