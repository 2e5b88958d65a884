"""`hopback rehearse`, run in the process."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest

from hopback.cli.app import run

if TYPE_CHECKING:
    from pathlib import Path

_Output = pytest.CaptureFixture[str]
_LONG = ("rehearse", "recommended", "--rate", "500/s", "--outage", "40m", "--consumers", "4×20")


def test_rehearse_prints_charts_totals_and_findings(capsys: _Output) -> None:
    assert run(_LONG) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "recommended for 1h55m: orders 500/s, outage of 40m at 5m (fluid engine)"
    )
    assert "⣿" in said
    assert "━━━" in said
    assert "error: orders [attempts-run-out]" in said
    assert "A further tier of 1h would park none." in said


def test_rehearse_json_contains_dead_letters_and_findings(capsys: _Output) -> None:
    """The total is the sum over the stations."""
    assert run([*_LONG, "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["deadLetters"] == sum(one["deadLetters"] for one in said["stations"]) > 100_000
    assert len(said["timesSeconds"]) == len(said["queues"][0]["depth"]) == 241
    assert {one["rule"] for one in said["findings"]} >= {"attempts-run-out", "dependency-load"}


def test_rehearse_csv_has_one_row_per_sample(capsys: _Output) -> None:
    assert run([*_LONG, "-o", "csv"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0][:2] == ["seconds", "orders depth"]
    assert len(rows) == 242
    assert {len(row) for row in rows} == {len(rows[0])}


def test_rehearse_exact_engine_simulates_each_message(capsys: _Output) -> None:
    """The handler times have a spread."""
    arguments = ("--rate", "1/s", "--outage", "1m@10s", "--for", "5m", "--engine", "exact")
    assert run(["rehearse", "ratatoskr", *arguments, "--handler", "40ms±20ms", "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["engine"] == "exact"
    assert said["deadLetters"] == pytest.approx(45, abs=2)


def test_rehearse_scenario_file_refuses_options_it_contains(
    tmp_path: Path, capsys: _Output
) -> None:
    """Its profile is a file next to it."""
    (tmp_path / "day.csv").write_text("seconds,rate\n0,100\n1800,400\n", encoding="utf-8")
    path = tmp_path / "day.toml"
    path.write_text('for = "1h"\n[queues.orders]\nprofile = "day.csv"\n', encoding="utf-8")
    assert run(["rehearse", "recommended", "--scenario", str(path), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["stations"][0]["published"] == 900_000
    assert run(["rehearse", "recommended", "--scenario", str(path), "--rate", "5/s"]) == 2


def test_rehearse_application_uses_concurrency_and_breaker_of_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: _Output
) -> None:
    (tmp_path / "rehearsed_shop.py").write_text(
        "from hopback import App, BreakerPolicy\n"
        "app = App('shop')\n"
        "@app.handler('orders', retry=('30s',), concurrency=3, breaker=BreakerPolicy())\n"
        "async def handle(body: bytes) -> None: ...\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert (
        run(["rehearse", "rehearsed_shop:app", "--rate", "10/s", "--outage", "10m", "-o", "json"])
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["stations"][0]["capacityPerSecond"][0] == 75
    assert said["deadLetters"] < 100


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("recommended",), 2, "--rate"),
        (("recommended", "--rate", "fast"), 2, "expected a rate"),
        (("recommended", "--rate", "1/s", "--outage", "soon"), 2, "--outage"),
        (("recommended", "--rate", "1/s", "--queue", "nothing"), 1, "that has a plan"),
        (("event-bus", "--rate", "1/s"), 2, "--queue"),
        (("recommended", "--scenario", "none.toml"), 5, "none.toml"),
        (("nowhere", "--rate", "1/s"), 5, "nowhere"),
        (("recommended", "--rate", "live"), 2, "HOPBACK_BROKER"),
        (("json:dumps", "--rate", "1/s"), 5, "json"),
        (("recommended", "--rate", "1/s", "--for", "0s"), 1, "more than 0s"),
        (
            ("recommended", "--rate", "1/s", "--arrivals", "bursts", "--burst-every", "0s"),
            1,
            "queues.orders.burst-every: expected more than 0s, got 0s",
        ),
        (("recommended", "--rate", "1/s", "--profile", "day.csv"), 2, "remove one of them"),
        (("recommended", "--rate", "1/s", "--burst-every", "10s"), 2, "needs --arrivals bursts"),
        (
            (*_LONG[1:], "--arrivals", "poisson", "--burst-every", "10s"),
            2,
            "needs --arrivals bursts",
        ),
        ((*_LONG[1:], "--advise", "recovered within 1s", "--engine", "exact"), 2, "--engine exact"),
        ((*_LONG[1:], "--advise", "recovered within 1s", "--detailed-exit-code"), 2, "exit status"),
    ],
)
def test_rehearse_mistakes_have_message_and_exit_code(
    arguments: tuple[str, ...], code: int, words: str, capsys: _Output
) -> None:
    assert run(["rehearse", *arguments]) == code
    assert words in capsys.readouterr().err


def test_rehearse_writes_complete_svg_and_html(capsys: _Output) -> None:
    assert run([*_LONG, "-o", "svg"]) == 0
    drawn = capsys.readouterr().out
    assert drawn.startswith("<svg ")
    assert drawn.endswith("</svg>\n")
    assert run([*_LONG, "-o", "html"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")


def test_rehearse_help_names_all_three_sources(capsys: _Output) -> None:
    assert run(["rehearse", "--help"]) == 0
    assert "(SYSTEM | FILE | MODULE:APP)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("engine", ["fluid", "exact"])
def test_rehearse_bursts_follow_their_interval(engine: str, capsys: _Output) -> None:
    """Ten minutes at 1/s in bursts of five minutes are two bursts of 300.

    The second one is at the end.
    """
    arguments = ("--rate", "1/s", "--arrivals", "bursts", "--burst-every", "5m", "--for", "11m")
    assert run(["rehearse", "ratatoskr", *arguments, "--engine", engine, "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["stations"][0]["published"] == pytest.approx(600, abs=1)
    assert max(queue["peak"] for queue in said["queues"]) > 200


def test_rehearse_detailed_exit_code_is_10_for_findings() -> None:
    assert run([*_LONG, "--detailed-exit-code"]) == 10
    calm = ("rehearse", "recommended", "--rate", "5/s", "--detailed-exit-code")
    assert run(calm) == 0


@pytest.mark.slow
def test_rehearse_advice_is_table_decorator_and_toml(capsys: _Output) -> None:
    """The present plan is first. An unreachable goal exits with 1."""
    goal = ("--advise", "no dead letters up to 1h outage")
    assert run([*_LONG, *goal]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[1].startswith("nothing ")
    assert '@app.handler("orders", retry=(' in said
    assert '[queues."orders"]' in said
    small = ("rehearse", "recommended", "--rate", "1/s", "--outage", "5m", "--for", "20m")
    assert run([*small, "--advise", "recovered within 1s"]) == 1
    assert run([*small, "--advise", "be good"]) == 2
