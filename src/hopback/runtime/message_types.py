"""Handlers for different message types of a queue.

All handlers of a queue share a consumer, so options such as concurrency apply to the queue. Rules
and deadlines apply to each handler.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from hopback.errors import InvalidDeclaration, Problem
from hopback.policy.outcome import FAILURES, OUTCOMES, Outcome, Park, outcome_of
from hopback.runtime.answer import Answer
from hopback.runtime.handler import BatchHandler, Handler, HandlerOptions
from hopback.runtime.worker import FunctionRunner, answer_for
from hopback.topology.asyncapi import MessageSchema, OutputSchema, PayloadSchemas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hopback.message import Delivery
    from hopback.runtime.app import App
    from hopback.runtime.push import PushHandler

TypeOf: TypeAlias = "Callable[[Delivery], str | None]"
"""A function that returns the type of a message, or None."""


def by_property(delivery: Delivery) -> str | None:
    """Read the message type from the `type` property."""
    return delivery.properties.type


def by_header(name: str) -> TypeOf:
    """Read the message type from a header."""

    def type_of(delivery: Delivery) -> str | None:
        found = delivery.properties.headers.get(name)
        return found if isinstance(found, str) else None

    return type_of


def by_cloudevents(delivery: Delivery) -> str | None:
    """Read the `type` of a CloudEvent in binary or structured mode."""
    properties = delivery.properties
    for name in ("cloudEvents:type", "cloudEvents_type"):
        found = properties.headers.get(name)
        if isinstance(found, str):
            return found
    if not (properties.content_type or "").lower().startswith("application/cloudevents+json"):
        return None
    try:
        event: Any = json.loads(delivery.body)
    except (ValueError, RecursionError):
        return None
    found = event.get("type") if isinstance(event, dict) else None
    return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class TypedHandlers:
    """The handlers of a queue by message type."""

    queue: str
    options: HandlerOptions
    handlers: Mapping[str, Handler]
    type_of: TypeOf = by_property
    unhandled: Outcome | None = None
    """The outcome for other types. If None, messages are dead-lettered."""

    def with_handler(self, name: str, handler: Handler) -> TypedHandlers:
        """Return a copy that includes another handler.

        Raises InvalidDeclaration if the two handlers conflict.
        """
        where = f"handler of queue {self.queue!r}"
        if name in self.handlers:
            problem = Problem(f"message_type {name!r}", "one handler", "another one")
            raise InvalidDeclaration((problem,), where=where)
        problems = tuple(
            Problem(option, f"{first!r}, as in the first handler of the queue", repr(given))
            for option in ("concurrency", "prefetch", "key", "breaker", "rate")
            if (given := getattr(handler.options, option))
            != (first := getattr(self.options, option))
        )
        if problems:
            raise InvalidDeclaration(problems, where=where)
        return replace(self, handlers={**self.handlers, name: handler})

    def with_queue(self, queue: str) -> TypedHandlers:
        """Return a copy for a queue with a different name."""
        handlers = {name: replace(one, queue=queue) for name, one in self.handlers.items()}
        return replace(self, queue=queue, handlers=handlers)


class TypedRunner:
    """Calls the handler for the type of a message."""

    def __init__(self, typed: TypedHandlers, runners: Mapping[str, FunctionRunner]) -> None:
        self._typed = typed
        self._runners = dict(runners)

    async def __call__(self, delivery: Delivery) -> Answer:
        try:
            name = self._typed.type_of(delivery)
            runner = None if name is None else self._runners.get(name)
        except FAILURES as error:  # raised by a custom function
            return answer_for(error)._replace(ran=False)
        if runner is not None:
            return await runner(delivery)
        if self._typed.unhandled is not None:
            return Answer(outcome_of(self._typed.unhandled), ran=False)
        found = "it has no type" if name is None else f"its type is {name[:200]!r}"
        known = ", ".join(map(repr, self._runners))
        reason = f"no handler for this message: {found}. Handled types: {known}"
        return Answer(Park(reason), ran=False)

    @property
    def waits_for_settlement(self) -> bool:
        """Whether any handler has values that have to stay open until the message is settled."""
        return any(one.waits_for_settlement for one in self._runners.values())

    async def close_delivery_scope(self, delivery: Delivery) -> None:
        """Close the values with the scope `delivery`."""
        for runner in self._runners.values():
            await runner.close_delivery_scope(delivery)


_PLACE = "#/components/schemas/{}"


def payload_schemas(app: App) -> PayloadSchemas:
    """Return the schemas of all messages of an application, for AsyncAPI."""
    described = _Described()
    for queue, handler in app.handlers.items():
        each: Mapping[str, Handler | BatchHandler | PushHandler]
        each = handler.handlers if isinstance(handler, TypedHandlers) else {queue: handler}
        for name, one in each.items():
            payload = described.schema(_payload_type(one))
            reply = described.schema(_reply_type(one)) if _replies(one) else None
            # Handlers that do not specify a type are listed under the name of the queue.
            if payload is not None or reply is not None or isinstance(handler, TypedHandlers):
                described.queues.setdefault(queue, []).append(MessageSchema(name, payload, reply))
            for output in getattr(one, "publishes", ()):
                message = MessageSchema(
                    output.message_type or output.routing_key, described.schema(output.payload)
                )
                described.outputs.append(
                    OutputSchema(queue, output.exchange, output.routing_key, message)
                )
    return PayloadSchemas(described.queues, described.outputs, described.shared)


class _Described:
    """Collects schemas and the schemas they refer to."""

    def __init__(self) -> None:
        self.queues: dict[str, list[MessageSchema]] = {}
        self.outputs: list[OutputSchema] = []
        self.shared: dict[str, Any] = {}

    def schema(self, wanted: Any) -> dict[str, Any] | None:
        """Return the schema of a type, or None if it cannot be described."""
        if wanted in (Any, bytes, None, type(None), inspect.Parameter.empty):
            return None
        found = _schema(wanted)
        if found is None:
            return None
        self.shared |= found[1]
        return found[0]


def _payload_type(handler: Handler | BatchHandler | PushHandler) -> Any:
    function = handler.prepare or handler if isinstance(handler, BatchHandler) else handler
    if isinstance(function, BatchHandler):
        name = next(iter(inspect.signature(function.call).parameters))
        return (*get_args(get_type_hints(function.call).get(name, Any)), Any)[0]
    if not isinstance(function, Handler) or function.decode is None:
        return Any
    return _hints(function).get(function.names[0], Any)


def _replies(handler: Handler | BatchHandler | PushHandler) -> bool:
    return isinstance(handler, Handler) and handler.replies


def _reply_type(handler: Handler | BatchHandler | PushHandler) -> Any:
    """Return the type of a handler's reply, which is its return type minus any outcomes."""
    if not isinstance(handler, Handler):
        return Any
    returned = _hints(handler).get("return", Any)
    if get_origin(returned) not in (Union, UnionType):
        return returned
    kinds = [one for one in get_args(returned) if one not in OUTCOMES]
    return Union[tuple(kinds)] if kinds else Any  # noqa: UP007 - made of a tuple


def _hints(handler: Handler) -> dict[str, Any]:
    called = handler.call if inspect.isroutine(handler.call) else type(handler.call).__call__
    return get_type_hints(called)


def _schema(wanted: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the schema of a type and the schemas it refers to, or None."""
    if hasattr(wanted, "model_json_schema"):  # a pydantic model
        whole = wanted.model_json_schema(ref_template=_PLACE.format("{model}"))
        shared = whole.pop("$defs", {})
        return {"$ref": _PLACE.format(wanted.__name__)}, {**shared, wanted.__name__: whole}
    from msgspec.json import schema_components

    try:
        (found,), shared = schema_components([wanted], ref_template=_PLACE.format("{name}"))
    except TypeError:
        return None
    return found, shared
