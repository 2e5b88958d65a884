"""The failure record: from an exception, bounded, stable, readable."""

from __future__ import annotations

import json
import re
import tracemalloc
from email.message import Message
from io import BytesIO
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.error import HTTPError

import pytest

from hopback.headers import (
    FAILURE_BYTES,
    Failure,
    failure_from_exception,
    failure_from_reason,
    failure_from_status,
    failure_in,
    failure_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.fields import FieldValue


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def _caught(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def _divide(by: int = 0) -> float:
    return 1 / by


def _decode() -> object:
    return json.loads("{")


def test_failure_record_has_type_message_and_application_frame() -> None:
    failure = failure_from_exception(_caught(_divide))
    assert failure.type == "ZeroDivisionError"
    assert failure.message == "division by zero"
    assert failure.frame == f"{__name__}:_divide"
    inside = failure_from_exception(_caught(_decode))
    assert inside.type == "json.decoder.JSONDecodeError"
    assert inside.frame == f"{__name__}:_decode"
    assert inside.stack.startswith("json.decoder:")


def test_fingerprint_depends_on_type_and_frame_only() -> None:
    def refuse(text: str) -> None:
        if text:
            raise ValueError(text)
        raise TypeError(text)

    one, two = (failure_from_exception(_caught(lambda t=t: refuse(t))) for t in ("a", "b"))  # type: ignore[misc]
    other = failure_from_exception(_caught(lambda: refuse("")))
    assert one.fingerprint == two.fingerprint
    assert one.message != two.message
    assert len({one.fingerprint, other.fingerprint}) == 2
    assert re.fullmatch(r"[0-9a-f]{12}", one.fingerprint)
    elsewhere = failure_from_exception(_caught(_divide))
    assert elsewhere.fingerprint != one.fingerprint


def test_exception_that_was_never_raised_has_no_frame() -> None:
    failure = failure_from_exception(KeyError("x"))
    assert (failure.type, failure.frame, failure.stack) == ("KeyError", "", "")
    assert failure.fingerprint


def test_failure_in_libraries_names_nearest_frame() -> None:
    code = compile("def f():\n    raise ValueError('x')\nf()", "<generated>", "exec")
    error = _caught(lambda: exec(code, {"__name__": "made.up"}))
    while error.__traceback__ and error.__traceback__.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = error.__traceback__.tb_next
    assert failure_from_exception(error).frame == "made.up:f"


def test_stack_has_at_most_three_causes() -> None:
    """`from None` ends the chain."""

    def chain(depth: int) -> None:
        try:
            if depth:
                chain(depth - 1)
            raise KeyError(f"deepest {depth}")
        except Exception as error:
            raise ValueError(f"level {depth}") from error

    def hidden() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer") from None

    def capture_during() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904

    assert failure_from_exception(_caught(lambda: chain(5))).stack.count("caused by") == 2
    assert "caused by" not in failure_from_exception(_caught(hidden)).stack
    assert "caused by KeyError: 'inner'" in failure_from_exception(_caught(capture_during)).stack


def test_deep_recursion_keeps_innermost_frames() -> None:
    def down(depth: int) -> None:
        if depth == 0:
            raise ValueError("bottom")
        down(depth - 1)

    stack = failure_from_exception(_caught(lambda: down(200))).stack
    assert len(stack.splitlines()) == 30


def test_unprintable_exception_is_recorded() -> None:
    assert failure_from_exception(_Unprintable()).message == "(its message could not be read)"
    failure = failure_from_exception(ValueError("\udc80 x"))
    assert failure.message == "\\udc80 x"


class _Markup(str):
    def encode(self, *_: str) -> bytes:
        raise RuntimeError("no")


class _Lookup(Exception):
    """Delegates attributes to a dict, as exceptions that wrap an answer do."""

    def __getattr__(self, name: str) -> object:
        empty: dict[str, object] = {}
        return empty[name]


class _Hidden(Exception):
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("no")


class _Empty(Exception):
    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        raise RuntimeError("no")


class _MarkedUp(Exception):
    def __str__(self) -> str:
        return _Markup("marked up")


def test_text_of_a_subclass_becomes_plain_text() -> None:
    failure = failure_from_exception(_MarkedUp())
    assert (failure.message, type(failure.message)) == ("marked up", str)


@pytest.mark.parametrize("kind", [_Unprintable, _Lookup, _Hidden, _Empty, _MarkedUp])
def test_exception_with_broken_attributes_is_recorded_alone_and_as_cause(
    kind: type[Exception],
) -> None:
    failure = failure_from_exception(kind("x"))
    assert failure.type.endswith(kind.__name__)
    assert failure.message
    error = ValueError("outer")
    error.__cause__ = kind("x")
    outer = failure_from_exception(error)
    assert (outer.type, outer.fingerprint != "") == ("ValueError", True)


def test_cause_that_is_false_is_part_of_the_stack() -> None:
    class NoErrors(Exception):
        def __len__(self) -> int:
            return 0

    error = ValueError("outer")
    error.__cause__ = NoErrors("inner")
    assert "NoErrors: inner" in failure_from_exception(error).stack


def _walk(path: int, depth: int) -> None:
    if depth == 0:
        raise ValueError("deep")
    if path & 1:
        _walk(path >> 1, depth - 1)
    else:
        _walk(path >> 1, depth - 1)


def test_long_tracebacks_of_many_messages_are_not_kept_in_memory() -> None:
    """A recursion over payloads has another traceback for each of them."""
    tracemalloc.start()
    try:
        for path in range(60):
            failure_from_exception(_caught(lambda path=path: _walk(path * 7919, 250)))  # type: ignore[misc]
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1_000_000


def test_long_message_is_truncated_with_ellipsis() -> None:
    failure = failure_from_exception(ValueError("ü" * 5000))
    assert len(failure.message.encode()) <= 1024
    assert failure.message.endswith("ü…")


def test_reason_without_exception_has_fingerprint() -> None:
    """It ignores numbers and ids."""
    one = failure_from_reason("order 17 (3f9a2c11-77de) is late")
    two = failure_from_reason("order 9 (00112233-4455) is late")
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != failure_from_reason("order 17 is lost").fingerprint
    assert one.message == "order 17 (3f9a2c11-77de) is late"


def _full() -> Failure:
    return Failure(
        type="shop.OutOfStock",
        message="m" * 1024,
        fingerprint="0123456789ab",
        frame="shop:reserve",
        stack="s" * 4096,
        host="node-1",
        first=1_700_000_000.0,
        last=1_700_000_001.5,
        attempts=3,
    )


def test_failure_record_round_trips_as_json() -> None:
    text = failure_json(_full())
    assert text is not None
    found = json.loads(text)
    assert found.keys() == set(Failure._fields)
    assert (found["first"], found["last"]) == (
        "2023-11-14T22:13:20.000Z",
        "2023-11-14T22:13:21.500Z",
    )
    assert failure_in(text) == _full()


def test_stack_is_shortened_before_message() -> None:
    rooms = [failure_in(failure_json(_full(), room)) for room in (8192, 3000, 900, 195)]
    whole, less, little, least = rooms
    assert whole is not None
    assert less is not None
    assert little is not None
    assert least is not None
    assert (len(whole.stack), len(whole.message)) == (4096, 1024)
    assert 0 < len(less.stack) < 4096
    assert len(less.message) == 1024
    assert little.stack == ""
    assert 0 < len(little.message) < 1024
    assert (least.message, least.type) == ("", "shop.OutOfStock")
    assert failure_json(_full(), 20) is None


def test_failure_record_stays_within_limit() -> None:
    loud = Failure(type='"' * 900, message="\x00" * 5000, stack="\x01" * 9000, host="\x02" * 900)
    text = failure_json(loud, 1_000_000)
    assert text is not None
    assert len(text.encode()) <= FAILURE_BYTES


@pytest.mark.parametrize(
    "value", [5, None, b"{}", "no json", "[]", "3", "[" * 70_000, "[" * 30_000]
)
def test_invalid_failure_record_is_ignored(value: FieldValue) -> None:
    assert failure_in(value) is None


def test_invalid_fields_of_record_are_ignored() -> None:
    odd = {"type": 5, "message": "m", "first": "never", "last": 7, "attempts": "x", "more": []}
    assert failure_in(json.dumps(odd)) == Failure("", "m")
    assert failure_in(json.dumps({"attempts": -3})) == Failure("", "")


def test_fingerprint_includes_http_status_but_no_other_numbers() -> None:
    reasons = (
        "HTTP 422",
        "HTTP 503",
        "order 7: status code 422",
        "order 7: status code 503",
        "status: 404",
    )
    assert len({failure_from_reason(reason).fingerprint for reason in reasons}) == len(reasons)
    one, two = failure_from_reason("order 7: HTTP 503"), failure_from_reason("order 8: HTTP 503")
    assert one.fingerprint == two.fingerprint
    assert failure_from_status(503, "HTTP 503")[:2] == ("HTTP 503", "")


class _Refused(Exception):
    """As httpx and requests raise it."""

    def __init__(self, status: int) -> None:
        super().__init__("refused")
        self.response = SimpleNamespace(status_code=status)


def _urllib_error(status: int) -> HTTPError:
    error = HTTPError("http://x", status, "no", Message(), BytesIO())
    error.close()
    return error


@pytest.mark.parametrize(
    "make",
    [_Refused, _urllib_error],
    ids=["httpx", "urllib"],
)
def test_http_status_of_exception_is_part_of_fingerprint(
    make: Callable[[int], Exception],
) -> None:
    def failure(status: int) -> str:
        try:
            raise make(status)
        except Exception as error:
            return failure_from_exception(error).fingerprint

    assert failure(422) == failure(422) != failure(503)
