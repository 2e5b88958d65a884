"""`hopback simulate`, run in the process."""

from __future__ import annotations

import json

import pytest

from hopback.cli.app import run

_Output = pytest.CaptureFixture[str]
_FREEFLOW = (
    *("simulate", "freeflow", "--queue", "freeflow.documents.queue"),
    *("--routing-key", "document.created", "--fail", "always", "--param", "audit=#"),
)


def test_simulate_shows_every_wait_and_extra_copies(capsys: _Output) -> None:
    """30 s, 5 min, 30 min, then the dead-letter queue. The audit queue gets three extra copies."""
    assert run(_FREEFLOW) == 0
    said = capsys.readouterr().out
    waits = [line.split()[-1] for line in said.splitlines() if " waits " in line]
    assert waits == ["30s", "5m", "30m"]
    assert said.count("extra copy") == 3
    assert said.splitlines()[-1] == (
        "The message is parked in freeflow.events.dlq after 4 runs and 35m30s."
        " Extra copies through retries: freeflow.audit.queue 3."
    )


def test_simulate_hardened_form_makes_no_extra_copies(capsys: _Output) -> None:
    assert run([*_FREEFLOW, "--hardened"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == (
        "The message is parked in freeflow.events.dlq after 4 runs and 35m30s."
        " Extra copies through retries: none."
    )


def test_simulate_json_contains_timeline_and_totals(capsys: _Output) -> None:
    assert run([*_FREEFLOW, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ending"] == {"step": "parked", "queue": "freeflow.events.dlq"}
    assert told["extra_copies"] == {"freeflow.audit.queue": 3}
    assert (told["runs"], told["duration_ms"]) == (4, 2_130_000)
    assert [entry["at_ms"] for entry in told["timeline"] if entry["step"] == "run"] == [
        0,
        30_000,
        330_000,
        2_130_000,
    ]


def test_simulate_mermaid_draws_sequence_diagram(capsys: _Output) -> None:
    assert run([*_FREEFLOW, "-o", "mermaid"]) == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith("sequenceDiagram\n")
    assert "as freeflow.document.retry.30m" in drawn


def test_simulate_uses_broker_version(capsys: _Output) -> None:
    arguments = ("simulate", "raffle", "--queue", "raffle_queue", "--fail", "0", "-o", "json")
    assert run([*arguments, "--broker-version", "3.10"]) == 0
    assert json.loads(capsys.readouterr().out)["broker_version"] == "3.10"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--queue", "raffle_dlq", "--fail", "1"), 5, "Queues with a plan: raffle_queue."),
        (("--queue", "raffle_queue", "--fail", "maybe"), 2, "one character per run"),
        (
            ("--queue", "raffle_queue", "--fail", "1", "--routing-key", "x"),
            1,
            "Bindings of the queue",
        ),
        (("--queue", "raffle_queue"), 2, "--fail"),
    ],
)
def test_simulate_refuses_invalid_options_with_remedy(
    capsys: _Output, options: tuple[str, ...], code: int, words: str
) -> None:
    assert run(["simulate", "raffle", *options]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
