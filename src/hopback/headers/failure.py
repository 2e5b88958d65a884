"""Failure records, which describe an error in a message header."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hopback.fields import FieldValue, text_bytes
from hopback.text import clip, count_in, json_in, seconds_in, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator


FAILURE_BYTES = 8 * 1024
"""Maximum size of a failure record in bytes."""

_MESSAGE_BYTES = 1024  # maximum size of an error message
_NAME_BYTES = 255  # maximum length of a name in AMQP 0-9-1
_STACK_BYTES = 4096  # leaves room for the rest of the record
_FRAMES = 30  # maximum number of frames per exception, innermost first
_CAUSES = 3  # maximum number of chained exceptions, which also protects against cycles
_LONGEST_JSON = 64 * 1024  # Hopback's records are less than half as long
# Used to recognise frames of the standard library and installed packages.
_LIBRARY = (dataclasses.__file__ or "").removesuffix("dataclasses.py")
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
_LONGEST_TRACE = 64 * 1024  # very long tracebacks usually repeat themselves
_FRAME = re.compile(r'  File "(?P<path>[^"]{1,1000})", line \d+, in (?P<function>[^\s]{1,255})')
_RAISED = re.compile(r"[A-Za-z_][\w.]{0,254}(?::|$)")
"""The line of a traceback that contains the exception. It is the only line without indentation."""
_UNREADABLE = "(its message could not be read)"
_VARYING = re.compile(
    r"(?P<status>\b(?:HTTP|status(?:[ _-]?code)?)\W{1,3}[1-5]\d\d(?!\d))"
    r"|0x[0-9a-f]+|[0-9a-f]{8,}(?:-[0-9a-f]+)*|\d+",
    re.IGNORECASE,
)
"""Variable parts of a reason, and HTTP status codes."""
_NAMED_STATUS = re.compile(
    r"\b(?:HTTP(?:/\d(?:\.\d)?)?|status(?:[ _-]?code)?(?: does not indicate success)?)\W{1,3}"
    r"(?P<code>[1-5]\d\d)(?!\d)",
    re.IGNORECASE,
)
_PHRASED_STATUS = re.compile(
    r"\b(?P<code>[3-5]\d\d)\W{1,2}(?:Client Error|Server Error|Moved|Found|See Other|Temporary Redirect"
    r"|Permanent Redirect|Bad Request|Unauthorized|Payment Required|Forbidden|Not (?:Found|Acceptable)"
    r"|Method Not|Request Timeout|Conflict|Gone|Precondition|Payload Too|Content Too|Unsupported Media"
    r"|Unprocessable|Locked|Failed Dependency|Too (?:Early|Many)|Internal Server|Not Implemented"
    r"|Bad Gateway|Service Unavailable|Gateway Time)"
)
"""An HTTP status code before its phrase, as in `503 Service Unavailable`."""

_Frames: TypeAlias = "tuple[tuple[str, str, int], ...]"
"""The place (`module:function`), the file and the line of each frame."""


class Failure(NamedTuple):
    """A failure record.

    Attributes:
        frame: The innermost frame of the application, as `module:function`.
        fingerprint: A short hash of the type and frame, used for grouping failures.
        first: Time of the first failure in seconds since the epoch.
        last: Time of the last failure in seconds since the epoch.
        attempts: Number of failed attempts so far.
    """

    type: str
    message: str
    fingerprint: str = ""
    frame: str = ""
    stack: str = ""
    host: str = ""
    first: float = 0.0
    last: float = 0.0
    attempts: int = 0


def failure_from_exception(error: BaseException) -> Failure:
    """Create a failure record for an exception.

    The time, host and number of attempts are added later. This function never raises an exception,
    even if an attribute of `error` does.
    """
    try:
        return _read_exception(error)
    except Exception:
        return failure_from_reason(_UNREADABLE, kind=type(error).__name__)


def _read_exception(error: BaseException) -> Failure:
    kind, frames = _type_name(error), _frames(error)
    frame, status = _own_frame(frames), _http_status(error)
    return Failure(
        clip(kind, _NAME_BYTES),
        clip(_message(error), _MESSAGE_BYTES),
        _fingerprint(kind if status is None else f"{kind} {status}", frame),
        clip(frame, _NAME_BYTES),
        clip(_stack(error, frames), _STACK_BYTES),
    )


def type_and_message(error: BaseException) -> tuple[str, str]:
    """Return the type and message of an exception as used in a failure record."""
    kind, text = _type_name(error), _message(error)
    return clip(kind, _NAME_BYTES), clip(text, _MESSAGE_BYTES)


def failure_from_reason(reason: str, *, kind: str = "") -> Failure:
    """Create a failure record for a reason.

    Numbers are ignored in the fingerprint, except for HTTP status codes.
    """
    return Failure(
        type=clip(kind, _NAME_BYTES),
        message=clip(reason, _MESSAGE_BYTES),
        fingerprint=_fingerprint(kind, _without_numbers(reason)),
    )


def failure_from_status(status: int, reason: str = "") -> Failure:
    """Create a failure record for an HTTP status.

    The reason is omitted if it only repeats the status.
    """
    kind = f"HTTP {status}"
    return failure_from_reason("" if reason == kind else reason, kind=kind)


def add_http_status(kind: str, message: str) -> str:
    """Append the HTTP status that the message contains to the type of an error.

    Fingerprints contain the status, because the same call can fail with a temporary status and with
    a permanent one.
    """
    found = _NAMED_STATUS.search(message) or _PHRASED_STATUS.search(message)
    return kind if found is None else f"{kind} {found['code']}"


def _without_numbers(reason: str) -> str:
    return _VARYING.sub(lambda found: found["status"] or "#", reason)


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status of an exception raised by httpx, requests, aiohttp or urllib."""
    try:
        response = getattr(error, "response", None)
        found = getattr(error if response is None else response, "status_code", None)
        if found is None:
            found = getattr(error, "status", None)
        if found is None and isinstance(error, OSError):
            found = getattr(error, "code", None)
    except Exception:
        return None  # raised by a custom attribute
    return found if type(found) is int and 100 <= found <= 599 else None


def failure_from_traceback(text: str) -> Failure:
    """Create a failure record for a formatted Python traceback."""
    lines = text[-_LONGEST_TRACE:].rstrip().splitlines()
    raised = next((line for line in reversed(lines) if _RAISED.match(line)), "")
    kind, _, message = raised.partition(":")
    frames = [found for found in map(_FRAME.match, lines) if found is not None]
    own = [one for one in frames if not _INSTALLED.search(one["path"])] or frames
    frame = ""
    if own:
        file = own[-1]["path"].replace("\\", "/").rpartition("/")[2]
        frame = f"{file}:{own[-1]['function']}"
    return Failure(
        type=clip(kind.strip(), _NAME_BYTES),
        message=clip(message.strip(), _MESSAGE_BYTES),
        fingerprint=_fingerprint(
            add_http_status(kind.strip(), message), frame or _without_numbers(message)
        ),
        frame=clip(frame, _NAME_BYTES),
        stack=_end_of("\n".join(lines), _STACK_BYTES),
    )


def _end_of(text: str, limit: int) -> str:
    """Return the last `limit` bytes, which are the most useful part of a traceback."""
    whole = text.encode("utf-8", "backslashreplace")
    if len(whole) <= limit:
        return text
    return "…" + whole[len("…".encode()) - limit :].decode("utf-8", "ignore")


def failure_json(failure: Failure, room: int = FAILURE_BYTES) -> str | None:
    """Encode a failure record as JSON with at most `room` bytes.

    The stack and then the message are shortened if necessary. Returns None if the record does not
    fit.
    """
    room = min(room, FAILURE_BYTES)
    if len(failure.stack) <= _STACK_BYTES and failure.stack.isascii():
        # Try smaller and smaller records. The first one usually fits.
        last = timestamp(failure.last)
        first = last if failure.first == failure.last else timestamp(failure.first)
        times = f'"first":"{first}","last":"{last}","attempts":{failure.attempts}}}'
        text = _write_start(*failure[:6]) + times
        if text_bytes(text) <= room:
            return text
    texts = map(_to_json, _smaller_versions(_fields(failure)))
    return next((text for text in texts if text_bytes(text) <= room), None)


# The result is cached, because failures of a service often only differ in time and attempts.
@lru_cache(maxsize=256)
def _write_start(
    kind: str, message: str, fingerprint: str, frame: str, stack: str, host: str
) -> str:
    """Encode the start of the record, without times and attempts."""
    fields = _fields(Failure(kind, message, fingerprint, frame, stack, host))
    for name in ("first", "last", "attempts"):
        del fields[name]
    return f"{_to_json(fields)[:-1]},"


def failure_in(value: FieldValue) -> Failure | None:
    """Parse a failure record. Returns None if it is invalid."""
    if not isinstance(value, str) or len(value) > _LONGEST_JSON:
        return None
    found = json_in(value)
    return _decode(found) if isinstance(found, dict) else None


def failure_text_in(value: FieldValue) -> str | None:
    """Return the encoded failure record, or None if it is invalid or too large."""
    if not isinstance(value, str) or text_bytes(value) > FAILURE_BYTES:
        return None
    return value if isinstance(json_in(value), dict) else None


def _decode(found: dict[str, object]) -> Failure:
    """Create a record from a dict. Invalid fields are ignored."""
    attempts = found.get("attempts")
    return Failure(
        type=_field(found, "type"),
        message=_field(found, "message", _MESSAGE_BYTES),
        fingerprint=_field(found, "fingerprint"),
        frame=_field(found, "frame"),
        stack=_field(found, "stack", _STACK_BYTES),
        host=_field(found, "host"),
        first=seconds_in(found.get("first")),
        last=seconds_in(found.get("last")),
        attempts=count_in(attempts if isinstance(attempts, int) else 0),
    )


def _field(found: dict[str, object], name: str, limit: int = _NAME_BYTES) -> str:
    value = found.get(name)
    return clip(value, limit) if isinstance(value, str) else ""


def _fields(failure: Failure) -> dict[str, str | int]:
    """Convert a record to a dict. Strings are truncated, except for the stack."""
    last = timestamp(failure.last)
    return {
        "type": clip(failure.type, _NAME_BYTES),
        "message": clip(failure.message, _MESSAGE_BYTES),
        "fingerprint": clip(failure.fingerprint, _NAME_BYTES),
        "frame": clip(failure.frame, _NAME_BYTES),
        "stack": failure.stack,
        "host": clip(failure.host, _NAME_BYTES),
        "first": last if failure.first == failure.last else timestamp(failure.first),
        "last": last,
        "attempts": failure.attempts,
    }


def _to_json(fields: dict[str, str | int]) -> str:
    """Encode a record as JSON without whitespace. This is twice as fast as `json.dumps`."""
    each = [
        f'"{name}":{encode_basestring(value) if isinstance(value, str) else value}'
        for name, value in fields.items()
    ]
    return f"{{{','.join(each)}}}"


def _smaller_versions(fields: dict[str, str | int]) -> Iterator[dict[str, str | int]]:
    """Yield versions of the record in which first the stack and then the message get shorter."""
    for stack in _shorten(str(fields["stack"]), _STACK_BYTES):
        yield fields | {"stack": stack}
    for message in _shorten(str(fields["message"]), _MESSAGE_BYTES):
        yield fields | {"stack": "", "message": message}
    yield fields | {"stack": "", "message": "", "frame": "", "host": ""}


def _shorten(text: str, limit: int) -> Iterator[str]:
    """Yield the text truncated to `limit` bytes, half of that and so on."""
    while limit > len("…".encode()):
        yield clip(text, limit)
        limit //= 2


# The result is cached, because failures of a service often occur in the same place.
@lru_cache(maxsize=256)
def _fingerprint(kind: str, place: str) -> str:
    whole = f"{kind}\n{place}".encode("utf-8", "backslashreplace")
    return hashlib.sha256(whole).hexdigest()[:12]


def _type_name(error: BaseException) -> str:
    kind = type(error)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str.__str__(str(error))  # `__str__` may return an instance of a subclass
    except Exception:
        return _UNREADABLE  # a broken `__str__` must not prevent dead-lettering


def _frames(error: BaseException) -> _Frames:
    """Return the frames of a traceback, innermost last."""
    found: list[tuple[str, str, int]] = []
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        code = frame.f_code
        place = f"{frame.f_globals.get('__name__', '?')}:{code.co_qualname}"
        found.append((place, code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return tuple(found)


def _own_frame(frames: _Frames) -> str:
    """Return the innermost frame that is not part of a library or Hopback.

    If there is none, return the innermost frame.
    """
    return _cached_own_frame(frames) if len(frames) <= _FRAMES else _find_own_frame(frames)


def _find_own_frame(frames: _Frames) -> str:
    for place, path, _ in reversed(frames):
        foreign = path.startswith(("<", _LIBRARY)) or _INSTALLED.search(path) is not None
        if not foreign and not place.startswith(("hopback.", "hopback:")):
            return place
    return frames[-1][0] if frames else ""


# The result is cached, because failures of a service often occur in the same place. Long tracebacks
# are not cached, because tracebacks of a recursion differ between messages and would fill the memory.
_cached_own_frame = lru_cache(maxsize=256)(_find_own_frame)


def _stack(error: BaseException, frames: _Frames) -> str:
    """Return the frames of an exception and its causes. Source code is not read."""
    parts = [_innermost(frames[-_FRAMES:])]
    cause = _cause(error)
    while cause is not None and len(parts) < _CAUSES:
        raised = f"caused by {_type_name(cause)}: {clip(_message(cause), _NAME_BYTES)}"
        parts.append(f"{raised}\n{_innermost(_frames(cause)[-_FRAMES:])}".rstrip("\n"))
        cause = _cause(cause)
    return "\n".join(filter(None, parts))


@lru_cache(maxsize=256)
def _innermost(frames: _Frames) -> str:
    return "\n".join(f"{place}:{line}" for place, _, line in reversed(frames))


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__
