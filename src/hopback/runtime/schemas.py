"""What the handlers of an application take, as JSON Schema: for its AsyncAPI document."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from hopback.runtime.handler import BatchHandler, Handler
from hopback.topology.asyncapi import PayloadSchemas

if TYPE_CHECKING:
    from hopback.runtime.app import AnyHandler, App

__all__ = ["payload_schemas"]

_PLACE = "#/components/schemas/{}"


def payload_schemas(app: App) -> PayloadSchemas:
    """The schema of each queue's payload, and those that they refer to; of bytes there is none."""
    queues: dict[str, dict[str, Any]] = {}
    shared: dict[str, Any] = {}
    for queue, handler in app.handlers.items():
        wanted = _payload_type(handler)
        found = None if wanted in (Any, bytes, inspect.Parameter.empty) else _schema(wanted)
        if found is not None:
            queues[queue], more = found
            shared |= more
    return PayloadSchemas(queues, shared)


def _payload_type(handler: AnyHandler) -> Any:
    """What the function's annotation says of its payload."""
    function = handler.prepare or handler if isinstance(handler, BatchHandler) else handler
    if isinstance(function, BatchHandler):
        name = next(iter(inspect.signature(function.call).parameters))
        return (*get_args(get_type_hints(function.call).get(name, Any)), Any)[0]
    if not isinstance(function, Handler) or function.decode is None:
        return Any
    called = function.call if inspect.isroutine(function.call) else type(function.call).__call__
    return get_type_hints(called).get(function.names[0], Any)


def _schema(wanted: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The schema and what it refers to; None where nobody can describe the type."""
    if hasattr(wanted, "model_json_schema"):  # a pydantic model describes itself
        whole = wanted.model_json_schema(ref_template=_PLACE.format("{model}"))
        shared = whole.pop("$defs", {})
        return {"$ref": _PLACE.format(wanted.__name__)}, {**shared, wanted.__name__: whole}
    from msgspec.json import schema_components

    try:
        (found,), shared = schema_components([wanted], ref_template=_PLACE.format("{name}"))
    except TypeError:
        return None
    return found, shared
