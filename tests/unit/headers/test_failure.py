"""The failure record: from an exception, bounded, stable, readable."""

from __future__ import annotations

import json
import re
from email.message import Message
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


def test_a_record_names_type_message_and_our_frame_nearest_to_the_error() -> None:
    """The frame is the application's, also where a library raised."""
    failure = failure_from_exception(_caught(_divide))
    assert failure.type == "ZeroDivisionError"
    assert failure.message == "division by zero"
    assert failure.frame == f"{__name__}:_divide"
    inside = failure_from_exception(_caught(_decode))
    assert inside.type == "json.decoder.JSONDecodeError"
    assert inside.frame == f"{__name__}:_decode"
    assert inside.stack.startswith("json.decoder:")


def test_a_fingerprint_tells_kinds_of_failure_apart_and_nothing_else() -> None:
    """Same type and frame, same print, whatever the message; another type or frame, another."""

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


def test_an_exception_that_was_never_raised_has_no_frame() -> None:
    """No traceback, no frame, no stack; still a type and a print."""
    failure = failure_from_exception(KeyError("x"))
    assert (failure.type, failure.frame, failure.stack) == ("KeyError", "", "")
    assert failure.fingerprint


def test_a_failure_in_libraries_alone_names_the_nearest_frame() -> None:
    """Where no frame is the application's, the one that raised stands for it."""
    code = compile("def f():\n    raise ValueError('x')\nf()", "<generated>", "exec")
    error = _caught(lambda: exec(code, {"__name__": "made.up"}))
    while error.__traceback__ and error.__traceback__.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = error.__traceback__.tb_next
    assert failure_from_exception(error).frame == "made.up:f"


def test_the_stack_tells_causes_within_bounds() -> None:
    """At most three exceptions of a chain; `from None` ends it."""

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

    def during() -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904

    assert failure_from_exception(_caught(lambda: chain(5))).stack.count("caused by") == 2
    assert "caused by" not in failure_from_exception(_caught(hidden)).stack
    assert "caused by KeyError: 'inner'" in failure_from_exception(_caught(during)).stack


def test_deep_recursion_gives_the_innermost_frames_only() -> None:
    """Thirty frames are enough to see where it went wrong."""

    def down(depth: int) -> None:
        if depth == 0:
            raise ValueError("bottom")
        down(depth - 1)

    stack = failure_from_exception(_caught(lambda: down(200))).stack
    assert len(stack.splitlines()) == 30


def test_what_cannot_be_printed_or_encoded_is_still_recorded() -> None:
    """A message that raises, and one with bytes that are no text."""
    assert failure_from_exception(_Unprintable()).message == "(its message could not be read)"
    failure = failure_from_exception(ValueError("\udc80 x"))
    assert failure.message == "\\udc80 x"


def test_a_long_message_is_cut_with_an_ellipsis() -> None:
    """At most a kilobyte, never in the middle of a character."""
    failure = failure_from_exception(ValueError("ü" * 5000))
    assert len(failure.message.encode()) <= 1024
    assert failure.message.endswith("ü…")


def test_a_reason_is_a_failure_without_frame() -> None:
    """Its print ignores numbers and ids, not words."""
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


def test_a_record_is_json_with_times_people_can_read() -> None:
    """All fields, and back to the same record."""
    text = failure_json(_full())
    assert text is not None
    found = json.loads(text)
    assert found.keys() == set(Failure._fields)
    assert (found["first"], found["last"]) == (
        "2023-11-14T22:13:20.000Z",
        "2023-11-14T22:13:21.500Z",
    )
    assert failure_in(text) == _full()


def test_the_stack_shrinks_before_the_message_and_the_rest_goes_last() -> None:
    """Each loss of room costs the least useful part."""
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


def test_no_record_is_larger_than_its_limit() -> None:
    """Also where every character needs an escape."""
    loud = Failure(type='"' * 900, message="\x00" * 5000, stack="\x01" * 9000, host="\x02" * 900)
    text = failure_json(loud, 1_000_000)
    assert text is not None
    assert len(text.encode()) <= FAILURE_BYTES


@pytest.mark.parametrize(
    "value", [5, None, b"{}", "no json", "[]", "3", "[" * 70_000, "[" * 30_000]
)
def test_what_is_no_record_reads_as_none(value: FieldValue) -> None:
    """Not text, not JSON, not an object, too long, nested beyond reason."""
    assert failure_in(value) is None


def test_fields_that_make_no_sense_read_as_absent() -> None:
    """A record of another version, or of a hostile hand, costs nothing but itself."""
    odd = {"type": 5, "message": "m", "first": "never", "last": 7, "attempts": "x", "more": []}
    assert failure_in(json.dumps(odd)) == Failure("", "m")
    assert failure_in(json.dumps({"attempts": -3})) == Failure("", "")


def test_http_statuses_tell_failures_apart_but_other_numbers_do_not() -> None:
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


@pytest.mark.parametrize(
    "make",
    [_Refused, lambda status: HTTPError("http://x", status, "no", Message(), None)],
    ids=["httpx", "urllib"],
)
def test_http_status_of_an_exception_is_part_of_its_fingerprint(
    make: Callable[[int], Exception],
) -> None:
    def failure(status: int) -> str:
        try:
            raise make(status)
        except Exception as error:
            return failure_from_exception(error).fingerprint

    assert failure(422) == failure(422) != failure(503)
