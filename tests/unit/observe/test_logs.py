"""Log lines: contents, levels, and escaping of values."""

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


def test_log_line_has_time_event_and_message() -> None:
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
def test_log_level_filters_events(level: str, least: int) -> None:
    log = JsonLog(ManualClock(), level=level)
    for name in EVENTS:
        assert log.wants(name) == (SEVERITY[LEVELS.get(name, "info")] >= least), name


def test_levels_name_existing_events() -> None:
    assert set(LEVELS) <= set(EVENTS)
    assert set(LEVELS.values()) <= set(SEVERITY)


def test_unknown_log_level_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a level of debug, info"):
        JsonLog(ManualClock(), level="warn")


def test_silent_event_is_not_logged() -> None:
    assert _json("topology.warning", {"rule": "r"}, silent={"topology.warning"}) == []


def test_documented_system_has_its_own_event_name() -> None:
    codes = DESIGNS["event-bus"].codes
    (exhausted,) = _json("delivery.parked", _PARKED, codes=codes)
    (early,) = _json("delivery.parked", {**_PARKED, "exhausted": False}, codes=codes)
    assert exhausted["code"] == "RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED"
    assert "code" not in early


def test_values_cannot_forge_json_line() -> None:
    stream = io.StringIO()
    JsonLog(ManualClock(), stream=stream)("delivery.parked", {**_PARKED, "reason": _HOSTILE})
    written = stream.getvalue()
    assert written.isascii()
    assert [one for one in written.rstrip("\n") if not one.isprintable()] == []
    assert json.loads(written)["reason"] == _HOSTILE


def test_control_characters_are_replaced_in_text_line() -> None:
    written = _text("delivery.parked", {**_PARKED, "reason": _HOSTILE})
    assert written.count("\n") == 1
    assert [one for one in written.rstrip("\n") if not one.isprintable()] == []
    assert "22:13:20 error   delivery.parked outcome=park queue=orders" in written


def test_text_line_starts_with_queue_run_and_reason() -> None:
    written = _text("delivery.parked", {**_PARKED, "correlation_id": "c" * 300})
    told = (
        'outcome=park queue=orders attempt=4 maxAttempts=4 reason="ValueError: no" error=ValueError'
    )
    assert told in written


def test_quotes_and_line_ends_are_escaped_in_text_line() -> None:
    written = _text("delivery.parked", {**_PARKED, "reason": 'POST / "HTTP/1.0 200 OK"\nC:\\x'})
    assert r'reason="POST / \"HTTP/1.0 200 OK\"\nC:\\x"' in written


def test_traceback_is_below_its_line() -> None:
    """Each line has a bar. In JSON it is a field."""
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


def test_log_line_names_process() -> None:
    (line,) = _json("delivery.parked", _PARKED, process=2)
    assert line["process"] == 2
    assert "delivery.parked process=2 outcome=park" in _text("delivery.parked", _PARKED, process=2)


def test_field_cannot_replace_time_level_or_event() -> None:
    (line,) = _json("delivery.retried", {"time": "never", "level": "debug", "event": "fine"})
    assert (line["level"], line["event"]) == ("warning", "delivery.retried")
    assert line["time"].startswith("2023-")


def test_text_line_is_coloured_by_level_on_request() -> None:
    assert _text("delivery.parked", _PARKED, colour=True).startswith("\x1b[31m")
    assert _text("delivery.parked", _PARKED, colour=True).endswith("\x1b[0m\n")
    assert "\x1b" not in _text("shutdown.step", {"step": 1}, colour=True)


def test_long_texts_are_truncated_in_log() -> None:
    (line,) = _json("delivery.parked", {**_PARKED, "reason": "x" * 100_000})
    assert len(line["reason"]) == 2001


def test_values_without_json_type_are_logged_as_text() -> None:
    (line,) = _json("delivery.parked", {**_PARKED, "reason": {1}})
    assert line["reason"] == "{1}"


def test_python_logging_uses_same_lines() -> None:
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


def test_unformattable_record_is_reported_by_logging(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    logger = logging.Logger("shop")
    logger.addHandler(LogBridge(JsonLog(ManualClock(), stream=stream)))
    logger.info("%d", "three")
    assert stream.getvalue() == ""
    assert "three" in capsys.readouterr().err
