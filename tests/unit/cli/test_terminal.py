"""Command output is safe on a terminal and complete in JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.cli import terminal
from hopback.text import one_line

_HOSTILE = "q\x1b]0;owned\x07\x9b31m\u202etxt.exe\r\nfake line"


def test_control_characters_in_names_are_replaced() -> None:
    shown = one_line(_HOSTILE)
    assert shown.startswith("q\N{REPLACEMENT CHARACTER}]0;owned")
    assert not set(shown) & set("\x1b\x07\x9b\u202e\r\n")


@given(st.text())
def test_safe_text_is_one_printable_line(text: str) -> None:
    """Alphanumeric text stays unchanged."""
    shown = one_line(text)
    assert len(shown) == len(text)
    assert all(sign >= " " and not "\x7f" <= sign <= "\x9f" for sign in shown)
    assert shown == text or not text.isalnum()


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists, max_leaves=5))
def test_json_output_keeps_every_character(value: object) -> None:
    assert json.loads(terminal.json_text({"value": value})) == {"value": value}


def test_json_output_escapes_control_characters() -> None:
    text = terminal.json_text({_HOSTILE: 1})
    assert not set(text) & set("\x1b\x07\x9b\u202e\r")


def test_table_without_terminal_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.table(("name", "what"), [("a", "x" * 300), ("long", "y\x1b[1m")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["NAME  WHAT", "a     " + "x" * 300, "long  y\N{REPLACEMENT CHARACTER}[1m"]


def test_queue_named_error_is_not_coloured_as_severity(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`error` is the default queue of NServiceBus."""
    monkeypatch.setattr(terminal, "on_terminal", lambda *, err=False: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    terminal.table(("queue",), [("error",)])
    terminal.table(("severity",), [("error",)])
    name, severity = (line for line in capsys.readouterr().out.splitlines() if "error" in line)
    assert "\x1b" not in name
    assert "\x1b" in severity


def test_document_without_terminal_is_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.document("a\u202eb")
    terminal.document("c\n")
    assert capsys.readouterr().out == "a\u202eb\nc\n"


def test_table_on_terminal_truncates_no_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sentences are folded."""
    monkeypatch.setattr(terminal, "on_terminal", lambda **_: True)
    monkeypatch.setenv("COLUMNS", "80")
    name = "my-service.events.dead-letters"
    terminal.table(("queue", "messages", "why"), [(name, "3", "word " * 40)], right=("messages",))
    shown = capsys.readouterr().out
    assert name in shown
    assert "…" not in shown
    assert shown.count("word") == 40


@pytest.mark.parametrize("columns", [50, 80, 100, 200])
def test_table_on_terminal_fits_columns_and_keeps_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(terminal, "on_terminal", lambda **_: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    queue, origin = f"{'q' * 60}.dlq", "o" * 60
    row = (queue, origin, "123456", "78")
    terminal.table(("queue", "from", "messages", "held"), [row], right=("messages", "held"))
    words = capsys.readouterr().out.split()
    assert {queue, "123456", "78"} <= set(words)
    assert "".join(words).count("o") == 61  # with that of `from`


def test_narrow_terminal_shows_lists_with_whole_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 60 columns, names needed by the next command are on one line."""
    monkeypatch.setattr(terminal, "on_terminal", lambda **_: True)
    monkeypatch.setenv("COLUMNS", "60")
    message, queue = "1-5bae7f5820c1d2e3", "a.rather.long.queue.name.dlq"
    row = (message, queue, "org.example.Error", "it failed again " * 6)
    terminal.table(("id", "queue", "type", "error"), [row], keep=("queue",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == message
    assert f"  queue  {queue}" in lines
    assert max(map(len, lines)) <= 60


def test_wrapped_sentences_keep_names_unbroken(capsys: pytest.CaptureFixture[str]) -> None:
    shown = terminal.wrap_text("a-name-that-is-" + "long" * 40 + " and words " * 20, "  ")
    first, *rest = shown.split("\n")
    assert first == "  a-name-that-is-" + "long" * 40
    assert all(len(line) <= 96 for line in rest)
