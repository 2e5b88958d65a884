"""Log lines: what they carry, at which level, and that no value can forge or colour one."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from hopback.clock import ManualClock
from hopback.designs import DESIGNS
from hopback.observe.events import EVENTS
from hopback.observe.logs import LEVELS, SEVERITY, JsonLog, LogBridge, TextLog

_HOSTILE = '\x1b[31m"}\n{"event":"delivery.done"}\r\u2028\u202e\x00\x9b31m\ud800'
_PARKED: dict[str, Any] = {
    "queue": "orders",
    "routing_key": "order.created",
    "message_id": "m-1",
    "message_type": None,
    "correlation_id": "c-1",
    "attempt": 4,
    "max_attempts": 4,
    "duration": 0.123456789,
    "reason": "ValueError: no",
    "error": "ValueError",
    "fingerprint": "abc",
    "dead_letter_queue": "orders.dlq",
    "exhausted": True,
}


def _json(name: str, fields: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    stream = io.StringIO()
    JsonLog(ManualClock(), stream=stream, **options)(name, fields)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def _text(name: str, fields: dict[str, Any], **options: Any) -> str:
    stream = io.StringIO()
    TextLog(ManualClock(), stream=stream, **options)(name, fields)
    return stream.getvalue()


def test_a_line_says_when_what_and_about_which_message() -> None:
    """Names in camelCase, UTC to the millisecond, the outcome; what is unknown is left out."""
    assert _json("delivery.parked", _PARKED) == [
        {
            "time": "2023-11-14T22:13:20.000Z",
            "level": "error",
            "event": "delivery.parked",
            "outcome": "park",
            "queue": "orders",
            "routingKey": "order.created",
            "messageId": "m-1",
            "correlationId": "c-1",
            "attempt": 4,
            "maxAttempts": 4,
            "duration": 0.123457,
            "reason": "ValueError: no",
            "error": "ValueError",
            "fingerprint": "abc",
            "deadLetterQueue": "orders.dlq",
            "exhausted": True,
        }
    ]


@pytest.mark.parametrize(("level", "least"), SEVERITY.items())
def test_only_what_matters_enough_is_written(level: str, least: int) -> None:
    """Every event has a level; a log of a level writes what is at least that grave."""
    log = JsonLog(ManualClock(), level=level)
    for name in EVENTS:
        assert log.wants(name) == (SEVERITY[LEVELS.get(name, "info")] >= least), name


def test_the_levels_are_of_events_that_there_are() -> None:
    """No level is kept for an event that nobody emits."""
    assert set(LEVELS) <= set(EVENTS)
    assert set(LEVELS.values()) <= set(SEVERITY)


def test_a_level_that_there_is_not_is_refused() -> None:
    """A misspelled level must not silence a log."""
    with pytest.raises(ValueError, match="expected a level of debug, info"):
        JsonLog(ManualClock(), level="warn")


def test_a_silent_event_is_not_written() -> None:
    """Of several processes one says what a topology can lose."""
    assert _json("topology.warning", {"rule": "r"}, silent={"topology.warning"}) == []


def test_a_documented_system_has_its_own_name_for_an_event() -> None:
    """The event bus's document names what is logged when retries are exhausted, and only then."""
    codes = DESIGNS["event-bus"].codes
    (exhausted,) = _json("delivery.parked", _PARKED, codes=codes)
    (early,) = _json("delivery.parked", {**_PARKED, "exhausted": False}, codes=codes)
    assert exhausted["code"] == "RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED"
    assert "code" not in early


def test_no_value_can_forge_a_json_line() -> None:
    """Newlines, quotes and escape sequences stay inside their value, in plain ASCII."""
    stream = io.StringIO()
    JsonLog(ManualClock(), stream=stream)("delivery.parked", {**_PARKED, "reason": _HOSTILE})
    written = stream.getvalue()
    assert written.isascii()
    assert [one for one in written.rstrip("\n") if not one.isprintable()] == []
    assert json.loads(written)["reason"] == _HOSTILE


def test_no_value_can_speak_to_a_terminal() -> None:
    """A text line is one line, and what a terminal would obey is replaced by a visible sign."""
    written = _text("delivery.parked", {**_PARKED, "reason": _HOSTILE})
    assert written.count("\n") == 1
    assert [one for one in written.rstrip("\n") if not one.isprintable()] == []
    assert "22:13:20 error   delivery.parked outcome=park queue=orders" in written


def test_a_text_line_says_first_what_a_person_looks_for() -> None:
    """The queue, the run and the reason stand before ids and keys."""
    written = _text("delivery.parked", {**_PARKED, "correlation_id": "c" * 300})
    told = (
        'outcome=park queue=orders attempt=4 maxAttempts=4 reason="ValueError: no" error=ValueError'
    )
    assert told in written


def test_quotes_and_line_ends_in_a_text_line_are_escaped() -> None:
    """What stands in quotes can be read back: a quote inside does not end it."""
    written = _text("delivery.parked", {**_PARKED, "reason": 'POST / "HTTP/1.0 200 OK"\nC:\\x'})
    assert r'reason="POST / \"HTTP/1.0 200 OK\"\nC:\\x"' in written


def test_a_traceback_stands_below_its_line() -> None:
    """Each line behind a bar, so that none can pass for a line of the log; in JSON it is a field."""
    fields = {
        "queue": "orders",
        "runs": 1,
        "traceback": "Traceback:\n  line 3\nValueError: \x1b[31m",
    }
    written = _text("handler.failed", fields)
    assert written.splitlines() == [
        "22:13:20 warning handler.failed queue=orders runs=1",
        "  | Traceback:",
        "  |   line 3",
        "  | ValueError: \N{REPLACEMENT CHARACTER}[31m",
    ]
    (line,) = _json("handler.failed", fields)
    assert line["traceback"] == fields["traceback"]
    (cut,) = _json("handler.failed", {"traceback": "x" * 20_000 + "the end"})
    assert cut["traceback"].endswith("the end")
    assert len(cut["traceback"]) == 8001


def test_a_line_says_which_process_it_is_from() -> None:
    """Of several processes; a single one needs no number."""
    (line,) = _json("delivery.parked", _PARKED, process=2)
    assert line["process"] == 2
    assert "delivery.parked process=2 outcome=park" in _text("delivery.parked", _PARKED, process=2)


def test_a_field_cannot_take_the_place_of_time_level_or_event() -> None:
    """A foreign subscriber may emit anything; the head of a line stays ours."""
    (line,) = _json("delivery.retried", {"time": "never", "level": "debug", "event": "fine"})
    assert (line["level"], line["event"]) == ("warning", "delivery.retried")
    assert line["time"].startswith("2023-")


def test_a_text_line_is_coloured_by_its_level_when_asked() -> None:
    """Colour begins and ends with the line."""
    assert _text("delivery.parked", _PARKED, colour=True).startswith("\x1b[31m")
    assert _text("delivery.parked", _PARKED, colour=True).endswith("\x1b[0m\n")
    assert "\x1b" not in _text("shutdown.step", {"step": 1}, colour=True)


def test_long_texts_are_cut() -> None:
    """A reason may quote what a service answered; a log is not the place for all of it."""
    (line,) = _json("delivery.parked", {**_PARKED, "reason": "x" * 100_000})
    assert len(line["reason"]) == 2001


def test_values_that_json_does_not_know_are_written_as_text() -> None:
    """A line is better than none."""
    (line,) = _json("delivery.parked", {**_PARKED, "reason": {1}})
    assert line["reason"] == "{1}"


def test_pythons_own_logging_joins_the_same_lines() -> None:
    """Level, logger, message and the end of a traceback, as hostile as they may be."""
    stream = io.StringIO()
    logger = logging.Logger("shop")
    logger.addHandler(LogBridge(JsonLog(ManualClock(), stream=stream)))
    logger.warning("%s has\n%d items", "cart", 3)
    try:
        raise KeyError("sku")
    except KeyError:
        logger.exception("failed")
    logger.log(5, "detail")
    logger.info("plain")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    told = [(one["level"], one["event"], one["logger"], one["message"]) for one in lines]
    assert told == [
        ("warning", "log", "shop", "cart has\n3 items"),
        ("error", "log", "shop", "failed"),
        ("debug", "log", "shop", "detail"),
        ("info", "log", "shop", "plain"),
    ]
    assert lines[1]["stack"].endswith("KeyError: 'sku'\n")


def test_a_record_that_cannot_be_formatted_disturbs_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Logging itself reports it on stderr, and the program goes on."""
    stream = io.StringIO()
    logger = logging.Logger("shop")
    logger.addHandler(LogBridge(JsonLog(ManualClock(), stream=stream)))
    logger.info("%d", "three")
    assert stream.getvalue() == ""
    assert "three" in capsys.readouterr().err
