"""Read Celery and Dramatiq tasks, including the function, the arguments and a recorded failure.

The body has already been parsed. Pickles are never loaded, and invalid values are ignored.

The functions are pure and accept any input.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopback.headers import clip, failure_from_traceback
from hopback.ops.messages.body import kombu_message, parse_content
from hopback.ops.messages.frameworks import ForeignFailure, read_retries

if TYPE_CHECKING:
    from hopback.fields import Headers
    from hopback.message import Delivery


_NAME_BYTES = 255  # bytes of a name or an id, as in AMQP properties. The rest is cut off.
_ARGUMENTS_BYTES = 1024  # bytes of arguments to show. The body contains all of them.
_PICKLES = frozenset({"application/x-python-serialize", "application/x-pickle"})


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A task in a message. `failed` is the failure recorded by its framework, if there is one."""

    framework: str
    name: str
    id: str
    arguments: str
    retries: int = 0
    failed: ForeignFailure | None = None

    def __str__(self) -> str:
        return f"{self.framework} task {self.name}({self.arguments})"


def _task_call(headers: Headers, content_type: str | None, parsed: object) -> TaskCall | None:
    name = headers.get("task")
    of_celery = "argsrepr" in headers or "lang" in headers
    if of_celery and isinstance(name, str) and isinstance(headers.get("id"), str):
        return _celery(headers, content_type, name, parsed)
    if isinstance(parsed, dict):
        if isinstance(parsed.get("actor_name"), str) and isinstance(parsed.get("options"), dict):
            return _dramatiq(parsed, parsed["options"])
        if isinstance(parsed.get("task"), str) and "args" in parsed and "kwargs" in parsed:
            # In protocol 1, the body contains everything.
            arguments = _call(parsed["args"], parsed["kwargs"])
            retries = read_retries(parsed.get("retries"))
            return _clip_call("Celery", parsed["task"], parsed.get("id"), arguments, retries)
    return None


def _celery(headers: Headers, content_type: str | None, name: str, parsed: object) -> TaskCall:
    """Read protocol 2. The headers contain the task, and the body contains its arguments."""
    if isinstance(parsed, list) and len(parsed) == 3:
        arguments = _call(parsed[0], parsed[1])
    else:
        shown = [_text_of(headers.get(name)) for name in ("argsrepr", "kwargsrepr")]
        arguments = ", ".join(one for one in shown if one not in ("", "()", "[]", "{}"))
        if content_type in _PICKLES:
            arguments = f"{arguments} (as its producer showed them: a pickle is not loaded)"
    retries = read_retries(headers.get("retries"))
    return _clip_call("Celery", name, headers.get("id"), arguments.strip(), retries)


def _dramatiq(body: dict[str, Any], options: dict[str, Any]) -> TaskCall:
    """Read a body. Its traceback belongs to the attempt before the last one."""
    retries, trace = read_retries(options.get("retries")), _text_of(options.get("traceback"))
    failed = None
    if trace:
        queue = _text_of(body.get("queue_name")).removesuffix(".DQ")
        ms = options.get("requeue_timestamp")
        moment = 0.0
        if isinstance(ms, int) and not isinstance(ms, bool) and 0 < ms < 2**48:
            moment = ms / 1000
        failure = failure_from_traceback(trace)._replace(first=moment, last=moment)
        failed = ForeignFailure("Dramatiq", failure, queue, retries)
    arguments, message_id = _call(body.get("args"), body.get("kwargs")), body.get("message_id")
    return _clip_call("Dramatiq", body["actor_name"], message_id, arguments, retries, failed)


def _clip_call(
    framework: str,
    name: str,
    task_id: object,
    arguments: str,
    retries: int,
    failed: ForeignFailure | None = None,
) -> TaskCall:
    name, found = clip(name, _NAME_BYTES), clip(_text_of(task_id), _NAME_BYTES)
    return TaskCall(framework, name, found, clip(arguments, _ARGUMENTS_BYTES), retries, failed)


def _call(args: object, kwargs: object) -> str:
    """Format arguments as in a Python call."""
    given = [_value_text(one) for one in args] if isinstance(args, list) else []
    if isinstance(kwargs, dict):
        given += [f"{name}={_value_text(value)}" for name, value in kwargs.items()]
    return ", ".join(given)


def _value_text(value: object) -> str:
    """Format a value as JSON. Bytes and dates in MessagePack are formatted as in Python."""
    if isinstance(value, dict) and value.keys() == {"__type__", "__value__"}:
        value = value["__value__"]  # the format used by Kombu for dates, decimals and bytes in JSON
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, TypeError, ValueError):
        return "…"


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def read_task_call(delivery: Delivery, parsed: object) -> TaskCall | None:
    """Return the task in a message, or None if the message is not a task.

    The message can also be inside Kombu's envelope for Redis or SQS.
    """
    inner = kombu_message(parsed)
    if inner is not None:
        return _task_call(
            inner.properties.headers, inner.properties.content_type, parse_content(inner)
        )
    properties = delivery.properties
    return _task_call(properties.headers, properties.content_type, parsed)
