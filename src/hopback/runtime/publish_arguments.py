"""Explain wrong arguments of `publish`, `request`, `compose` and `send`."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from hopback.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable


class WrongCall(TypeError):
    """Raised if `publish` or a similar method is called with wrong arguments.

    The message being handled is parked, since every retry would fail the same way.
    """


P = ParamSpec("P")
R = TypeVar("R")

_NOT_A_PAYLOAD = "expected a payload, got a Message: write `send(message)` to publish it"


def explain_arguments(publish: Callable[P, R]) -> Callable[P, R]:
    """Decorator that explains which arguments are wrong."""
    most = publish.__code__.co_argcount
    name = publish.__name__

    @wraps(publish)
    def call(*given: P.args, **options: P.kwargs) -> R:
        if len(given) < most and given and isinstance(given[-1], Message):
            raise WrongCall(_NOT_A_PAYLOAD)
        if len(given) > most:
            raise WrongCall(
                f"expected `{name}(queue, payload)` or `{name}(routing_key, payload, exchange=…)`, "
                f"got {len(given) - most + 2} positional arguments"
            )
        return publish(*given, **options)

    return call


def check_publish(routing_key: object, payload: object, exchange: object) -> None:
    """Raise WrongCall or ValueError if the arguments are invalid."""
    for name, given in (("routing_key", routing_key), ("exchange", exchange)):
        if not isinstance(given, str):
            own = getattr(given, "name", None)
            hint = f": give its name, {own!r}" if isinstance(own, str) else ""
            raise WrongCall(f"{name}: expected str, got {type(given).__name__}{hint}")
    if not routing_key and not exchange:
        raise ValueError(
            "routing_key: expected the name of a queue, got ''. An exchange is given by `exchange=`"
        )
    if isinstance(payload, Message):
        raise WrongCall(_NOT_A_PAYLOAD)
