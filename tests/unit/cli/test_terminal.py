"""What the command prints cannot harm a terminal and loses nothing in JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.cli import terminal
from hopback.text import one_line

_HOSTILE = "q\x1b]0;owned\x07\x9b31m\u202etxt.exe\r\nfake line"


def test_a_name_cannot_speak_to_the_terminal() -> None:
    """Escape sequences, bells, line breaks and reversing marks become visible signs."""
    shown = one_line(_HOSTILE)
    assert shown.startswith("q\N{REPLACEMENT CHARACTER}]0;owned")
    assert not set(shown) & set("\x1b\x07\x9b\u202e\r\n")


@given(st.text())
def test_safe_text_is_one_printable_line(text: str) -> None:
    """Whatever the text, nothing is left that moves the cursor; ordinary letters stay."""
    shown = one_line(text)
    assert len(shown) == len(text)
    assert all(sign >= " " and not "\x7f" <= sign <= "\x9f" for sign in shown)
    assert shown == text or not text.isalnum()


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists, max_leaves=5))
def test_json_keeps_every_character(value: object) -> None:
    """What is escaped for the terminal's sake reads back as it was."""
    assert json.loads(terminal.json_text({"value": value})) == {"value": value}


def test_json_is_safe_on_a_terminal() -> None:
    """Control characters stand in JSON as escapes only, the C1 ones and reversing marks too."""
    text = terminal.json_text({_HOSTILE: 1})
    assert not set(text) & set("\x1b\x07\x9b\u202e\r")


def test_off_a_terminal_a_table_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are aligned, nothing is drawn, coloured, wrap_text or cut."""
    terminal.table(("name", "what"), [("a", "x" * 300), ("long", "y\x1b[1m")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["NAME  WHAT", "a     " + "x" * 300, "long  y\N{REPLACEMENT CHARACTER}[1m"]


def test_a_queue_called_error_looks_like_any_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A severity is marked where it is one; the default queue of NServiceBus is a name."""
    monkeypatch.setattr(terminal, "on_terminal", lambda *, err=False: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    terminal.table(("queue",), [("error",)])
    terminal.table(("severity",), [("error",)])
    name, severity = (line for line in capsys.readouterr().out.splitlines() if "error" in line)
    assert "\x1b" not in name
    assert "\x1b" in severity


def test_a_document_reaches_a_file_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal a document is not touched and ends with one line break."""
    terminal.document("a\u202eb")
    terminal.document("c\n")
    assert capsys.readouterr().out == "a\u202eb\nc\n"


def test_on_a_terminal_no_name_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that is not whole cannot be copied; sentences are folded."""
    monkeypatch.setattr(terminal, "on_terminal", lambda **_: True)
    monkeypatch.setenv("COLUMNS", "80")
    name = "my-service.events.dead-letters"
    terminal.table(("queue", "messages", "why"), [(name, "3", "word " * 40)], right=("messages",))
    shown = capsys.readouterr().out
    assert name in shown
    assert "…" not in shown
    assert shown.count("word") == 40


@pytest.mark.parametrize("columns", [50, 80, 100, 200])
def test_on_a_terminal_all_columns_fit_and_numbers_are_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """However long the names are: they stay whole, and what was counted is beside them or below."""
    monkeypatch.setattr(terminal, "on_terminal", lambda **_: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    queue, origin = f"{'q' * 60}.dlq", "o" * 60
    row = (queue, origin, "123456", "78")
    terminal.table(("queue", "from", "messages", "held"), [row], right=("messages", "held"))
    words = capsys.readouterr().out.split()
    assert {queue, "123456", "78"} <= set(words)
    assert "".join(words).count("o") == 61  # with that of `from`


def test_a_narrow_terminal_gets_lists_with_whole_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 60 columns what the next command needs is still on one line, and no line is wider."""
    monkeypatch.setattr(terminal, "on_terminal", lambda **_: True)
    monkeypatch.setenv("COLUMNS", "60")
    message, queue = "1-5bae7f5820c1d2e3", "a.rather.long.queue.name.dlq"
    row = (message, queue, "org.example.Error", "it failed again " * 6)
    terminal.table(("id", "queue", "type", "error"), [row], keep=("queue",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == message
    assert f"  queue  {queue}" in lines
    assert max(map(len, lines)) <= 60


def test_sentences_have_a_readable_width(capsys: pytest.CaptureFixture[str]) -> None:
    """Names are not broken, so that they can be searched for."""
    shown = terminal.wrap_text("a-name-that-is-" + "long" * 40 + " and words " * 20, "  ")
    first, *rest = shown.split("\n")
    assert first == "  a-name-that-is-" + "long" * 40
    assert all(len(line) <= 96 for line in rest)
