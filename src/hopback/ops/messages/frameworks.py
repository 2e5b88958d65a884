"""Failures that others recorded: by MassTransit, NServiceBus, Spring, Symfony, Celery and Dramatiq. Pure.

One row per framework. What makes no sense reads as absent; nothing here raises.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from hopback.headers import Failure, clipped, failure_from_reason, failure_from_traceback

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.fields import Headers

_TEXT_BYTES = 1024  # of a message of an error: as much as our own records keep
_LONGEST = 64 * 1024  # of a text in a header: a stack is longer only where something repeats
_MOST_WRAPPED = 10  # exceptions within exceptions; a chain of more is a mistake, or hostile
_STACK_BYTES = 16 * 1024  # of a stack that is shown: its cause stands at the end of it
_SYMFONY = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\"


@dataclass(frozen=True, slots=True)
class ForeignFailure:
    """What another framework says went wrong, and where."""

    framework: str
    failure: Failure
    queue: str = ""
    retries: int = 0


_Reader: TypeAlias = "Callable[[Headers], ForeignFailure | None]"


def foreign_failure(headers: Headers) -> ForeignFailure | None:
    """The failure that another framework recorded in the headers, if one did."""
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
        # The last segment of an address: rabbitmq://host/vhost/queue?durable=true
        _text(headers, "MT-Fault-InputAddress").partition("?")[0].rstrip("/").rpartition("/")[2],
        _number(headers, "MT-Fault-RetryCount"),
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
            _nservicebus_moment(_text(headers, "NServiceBus.TimeOfFailure")),
        ),
        _text(headers, "NServiceBus.FailedQ").split("@")[0],
        max(_number(headers, "NServiceBus.FLRetries"), _number(headers, "NServiceBus.Retries")),
    )


def _spring(headers: Headers) -> ForeignFailure | None:
    stack = _text(headers, "x-exception-stacktrace")
    message = _text(headers, "x-exception-message")
    if not stack and (
        not message or _first_of(headers, _KINDS)
    ):  # Spring never names the type alone
        return None
    kind = stack.partition("\n")[0].partition(":")[0].strip()
    return ForeignFailure("Spring", _failure(kind, message, stack, 0.0))


def _symfony(headers: Headers) -> ForeignFailure | None:
    error = _stamp(headers, "ErrorDetailsStamp")
    if not error:
        return None
    kind, message, stack = (
        _string(error.get("exceptionClass")),
        _string(error.get("exceptionMessage")),
        "",
    )
    inner = error.get("flattenException")
    for _ in range(_MOST_WRAPPED):  # the innermost exception that Symfony wrote down
        if not isinstance(inner, dict) or not _string(inner.get("class")):
            break
        kind, message = _string(inner.get("class")), _string(inner.get("message"))
        stack = _string(inner.get("traceAsString") or inner.get("trace_as_string"))
        inner = inner.get("previous")
    again = _stamp(headers, "RedeliveryStamp")
    retries = again.get("retryCount")
    return ForeignFailure(
        "Symfony",
        _failure(
            kind,
            message,
            stack,
            _moment(_string(again.get("redeliveredAt"))),
        ),
        _string(_stamp(headers, "SentToFailureTransportStamp").get("originalReceiverName")),
        retries if isinstance(retries, int) and 0 <= retries < 1_000_000 else 0,
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


def _home_made(headers: Headers) -> ForeignFailure | None:
    """What a consumer of nobody's framework wrote down, under the names that people choose for it."""
    if headers.keys().isdisjoint(_HOME_MADE):  # most have none, and a million are read for a survey
        return None
    message, stack = _first_of(headers, _MESSAGES), _first_of(headers, _STACKS)
    if not message and not stack:
        return None
    kind = _first_of(headers, _KINDS)
    if not kind:
        # `TimeoutError: no answer`, `app.errors.Refused: 3` name a type; `no answer from x: 3` does not.
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
        if name in headers and (said := _text(headers, name)):
            return said
    return ""


_READERS: tuple[_Reader, ...] = (_mass_transit, _nservicebus, _spring, _symfony, _home_made)


def _failure(kind: str, message: str, stack: str, last: float) -> Failure:
    """The record of the cause that was wrapped, its fingerprint by type and frame, or by the message."""
    cause = root_cause(kind, message, stack)
    made = failure_from_reason(cause.frame or cause.message, kind=cause.type)
    return Failure(
        type=made.type,
        message=clipped(cause.message, _TEXT_BYTES),
        fingerprint=made.fingerprint,
        frame=clipped(cause.frame, 255),
        stack=clipped(stack, _STACK_BYTES),
        last=last,
        first=last,
    )


def _text(headers: Headers, name: str) -> str:
    return _string(headers.get(name))


def _string(value: object) -> str:
    if isinstance(value, bytes):
        value = value[:_LONGEST].decode("utf-8", "replace")
    return value[:_LONGEST] if isinstance(value, str) else ""


def _number(headers: Headers, name: str) -> int:
    value = headers.get(name)
    if isinstance(value, str) and value.isdecimal() and len(value) < 7:
        return int(value)
    plain = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1_000_000
    return int(value) if plain and isinstance(value, int) else 0


def _stamp(headers: Headers, name: str) -> dict[str, object]:
    """The last stamp of that kind."""
    text = _text(headers, _SYMFONY + name)
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return {}
    last = found[-1] if isinstance(found, list) and found else found
    return last if isinstance(last, dict) else {}


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        return max(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp(), 0.0)
    except (ValueError, OverflowError, OSError):
        return 0.0


def _nservicebus_moment(text: str) -> float:
    """`2023-11-14 22:13:20:123456 Z`."""
    try:
        return max(
            datetime.strptime(text, "%Y-%m-%d %H:%M:%S:%f Z").replace(tzinfo=UTC).timestamp(), 0.0
        )
    except (ValueError, OverflowError, OSError):
        return 0.0


#
# What a stack trace of another language says went wrong at the bottom of it. Pure, total, in linear
# time.
#
# Frameworks wrap what a handler raised: Spring in a ListenerExecutionFailedException, .NET in an
# AggregateException, Symfony in a HandlerFailedException. All failures of a service would be one
# then. The cause is what counts, and the first frame of the application in it.

_LONGEST_STACK = 64 * 1024  # characters of a stack: longer ones repeat themselves
_MOST_LINES = 2000  # of them; a recursion that ran deep says nothing new after that
# Java and its wrapped causes; Node.js writes `[cause]: TypeError: text`.
_CAUSED_BY = re.compile(r"(?:Caused by|\[cause\]):\s*(.+)")
_INNER = re.compile(r"-{2,3}> (?:\(Inner Exception #\d+\) )?")
# An Elixir process: `** (RuntimeError) text`.
_ELIXIR = re.compile(r"\*\* \(([A-Z][\w.]*)\)\s*(.*)")
_TYPED = re.compile(r"([A-Za-z_$][\w$.\\`+:]*?)(?::\s+(.*)|:?\s*)")
_PYTHON_FRAME = re.compile(r'File "([^"]+)", line \d+, in (\S+)')
_ELIXIR_FRAME = re.compile(r"(?:\([\w.-]+(?: [\w.-]+)?\) )?\S+\.exs?:\d+: ([\w.]+/\d+)")
_RUBY_FRAME = re.compile(r"(\S+\.rb):\d+:in [`']([^'`]+)'")
_PHP_FRAME = re.compile(r"#\d+ (?:\S+\(\d+\): )?([\w\\]+(?:->|::)\w+)")
_FOREIGN = (
    "java.", "javax.", "jakarta.", "jdk.", "sun.", "com.sun.", "kotlin.", "scala.", "reactor.",
    "org.springframework.", "org.apache.", "org.hibernate.", "org.postgresql.", "com.rabbitmq.",
    "com.zaxxer.", "com.mysql.", "io.netty.", "io.micrometer.", "System.", "Microsoft.", "MassTransit.",
    "NServiceBus.", "RabbitMQ.", "Npgsql.", "MySql.", "Castle.", "Newtonsoft.", "GreenPipes.",
    "Symfony\\", "Doctrine\\", "node:", "internal/", "process.", "Broadway.", "GenServer.", "Task.",
    ":proc_lib.", ":gen_server.",
)  # fmt: skip
_LIBRARIES = ("node_modules", "site-packages", "dist-packages", "/gems/", "/vendor/", "/deps/")


class RootCause(NamedTuple):
    """The innermost exception: its type, its message, and the first frame of the application in it."""

    type: str
    message: str
    frame: str


def root_cause(kind: str, message: str, stack: str) -> RootCause:
    """The cause that a stack names last; `kind` and `message` where it names none."""
    lines = stack[:_LONGEST_STACK].splitlines()[:_MOST_LINES]
    begins = 0
    for number, line in enumerate(lines):
        found = _cause_in(line.strip())
        if found is not None:
            (kind, message), begins = found, number
    frame = _frame(lines[begins:])
    if not frame and begins:
        frame = _frame(lines)
    return RootCause(kind, message, frame)


def _cause_in(line: str) -> tuple[str, str] | None:
    """Type and message of a cause that is named in this line."""
    found = _CAUSED_BY.match(line)
    if found is not None:
        return _typed(found[1])
    wrapped = _INNER.split(line)
    if len(wrapped) > 1:  # .NET writes all of them into the first line: the last is the innermost
        inner = _typed(wrapped[-1])
        return inner if inner[0] else None
    found = _ELIXIR.match(line)
    return None if found is None else (found[1], found[2].strip())


def _typed(text: str) -> tuple[str, str]:
    """`org.example.Failed: text` as type and message; a text without a type is a message."""
    found = _TYPED.fullmatch(text.strip().removesuffix("{").strip())
    return ("", text) if found is None else (found[1], found[2] or "")


def _frame(lines: list[str]) -> str:
    """The first frame that is the application's, else the first."""
    first, is_python = "", False
    frames: list[str] = []
    for line in lines:
        words = line.strip()
        if words.startswith("at ") and ("(" in words or "." in words):
            frame = words.removeprefix("at ").removeprefix("async ")
            name = frame.partition("(")[0].partition(" in ")[0].strip()
            is_own = not name.startswith(_FOREIGN) and not any(part in frame for part in _LIBRARIES)
        elif (match := _PYTHON_FRAME.match(words)) is not None:
            is_python = True
            name = f"{match[1].replace(chr(92), '/').rpartition('/')[2]}:{match[2]}"
            is_own = not any(part in match[1] for part in _LIBRARIES)
        else:
            match = (
                _ELIXIR_FRAME.match(words) or _RUBY_FRAME.match(words) or _PHP_FRAME.match(words)
            )
            if match is None:
                continue
            name = ":".join(match.groups())
            is_own = not name.startswith(_FOREIGN) and not any(part in words for part in _LIBRARIES)
        first = first or name
        if is_own:
            frames.append(name)
            if not is_python:
                break
    # Python writes the innermost frame last.
    return (frames[-1] if is_python else frames[0]) if frames else first


#
# Tasks of Celery and Dramatiq in dead letters: what was called, with what, and what it raised.
# Pure.
#
# What is in a body was read before, see `body`; a pickle never is. What makes no sense reads as
# absent; nothing here raises.

_NAME_BYTES = 255  # of a name or an id: what a property of AMQP can hold
_ARGUMENTS_BYTES = 1024  # of arguments: a screenful is for people, the rest is in the body
_MANY_RETRIES = 1_000_000  # a number beyond is no count

_PICKLES = frozenset({"application/x-python-serialize", "application/x-pickle"})


@dataclass(frozen=True, slots=True)
class TaskCall:
    """A call that travels as a message. `failed` is what its framework wrote down, if it did."""

    framework: str
    name: str
    id: str
    arguments: str
    retries: int = 0
    failed: ForeignFailure | None = None

    def __str__(self) -> str:
        return f"{self.framework} task {self.name}({self.arguments})"


def task_call(headers: Headers, content_type: str | None, parsed: object) -> TaskCall | None:
    """The call in a message whose body is `parsed`; None if it is none of these frameworks'."""
    name = headers.get("task")
    of_celery = "argsrepr" in headers or "lang" in headers
    if of_celery and isinstance(name, str) and isinstance(headers.get("id"), str):
        return _celery(headers, content_type, name, parsed)
    if isinstance(parsed, dict):
        if isinstance(parsed.get("actor_name"), str) and isinstance(parsed.get("options"), dict):
            return _dramatiq(parsed, parsed["options"])
        if isinstance(parsed.get("task"), str) and "args" in parsed and "kwargs" in parsed:
            # Protocol 1: everything in the body.
            return TaskCall(
                "Celery",
                clipped(parsed["task"], _NAME_BYTES),
                clipped(_text_of(parsed.get("id")), _NAME_BYTES),
                clipped(_call(parsed["args"], parsed["kwargs"]), _ARGUMENTS_BYTES),
                _count(parsed.get("retries")),
            )
    return None


def _celery(headers: Headers, content_type: str | None, name: str, parsed: object) -> TaskCall:
    """Protocol 2: the call in the headers, its arguments in the body."""
    if isinstance(parsed, list) and len(parsed) == 3:
        arguments = _call(parsed[0], parsed[1])
    else:
        shown = [_text_of(headers.get(name)) for name in ("argsrepr", "kwargsrepr")]
        arguments = ", ".join(one for one in shown if one not in ("", "()", "[]", "{}"))
        if content_type in _PICKLES:
            arguments = f"{arguments} (as its producer showed them: a pickle is not loaded)"
    return TaskCall(
        "Celery",
        clipped(name, _NAME_BYTES),
        clipped(_text_of(headers.get("id")), _NAME_BYTES),
        clipped(arguments.strip(), _ARGUMENTS_BYTES),
        _count(headers.get("retries")),
    )


def _dramatiq(body: dict[str, Any], options: dict[str, Any]) -> TaskCall:
    """Everything is in the body; a traceback is that of the attempt before the last."""
    retries, trace = _count(options.get("retries")), _text_of(options.get("traceback"))
    failed = None
    if trace:
        queue = _text_of(body.get("queue_name")).removesuffix(".DQ")
        ms = options.get("requeue_timestamp")
        moment = 0.0
        if isinstance(ms, int) and not isinstance(ms, bool) and 0 < ms < 2**48:
            moment = ms / 1000
        failure = failure_from_traceback(trace)._replace(first=moment, last=moment)
        failed = ForeignFailure("Dramatiq", failure, queue, retries)
    return TaskCall(
        "Dramatiq",
        clipped(body["actor_name"], _NAME_BYTES),
        clipped(_text_of(body.get("message_id")), _NAME_BYTES),
        clipped(_call(body.get("args"), body.get("kwargs")), _ARGUMENTS_BYTES),
        retries,
        failed,
    )


def _call(args: object, kwargs: object) -> str:
    """Arguments as one would write them."""
    given = [_value_text(one) for one in args] if isinstance(args, list) else []
    if isinstance(kwargs, dict):
        given += [f"{name}={_value_text(value)}" for name, value in kwargs.items()]
    return ", ".join(given)


def _value_text(value: object) -> str:
    """As JSON; bytes and dates of MessagePack as Python writes them."""
    if isinstance(value, dict) and value.keys() == {"__type__", "__value__"}:
        value = value[
            "__value__"
        ]  # Kombu's form of what JSON has no type for: dates, decimals, bytes
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, TypeError, ValueError):
        return "…"


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    plain = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MANY_RETRIES
    return int(value) if plain and isinstance(value, int) else 0
