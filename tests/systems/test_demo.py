"""`hopback demo` as a process: it starts, shows its systems at work, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

from hopback import RabbitMQ
from hopback.systems import HOMES
from tests.systems.processes import get, started

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.processes import Process

pytestmark = pytest.mark.xdist_group("systems")


def _parked(demo: Process, url: str) -> dict[str, str]:
    """Queues with parked messages, as soon as there are any."""

    def look() -> dict[str, str]:
        answer = get(f"{url}/metrics")
        text = "" if answer is None else answer.text
        return dict(re.findall(r'hopback_parked_total\{.*?queue="(.+?)"\} ([1-9].*)', text))

    return demo.until(look)


def _counters(url: str) -> dict[str, dict[str, int]] | None:
    """What the front page counts, as soon as every system has done something and one has dead letters."""
    answer = get(f"{url}/demo/counters")
    found: dict[str, dict[str, int]] = {} if answer is None else answer.json()
    busy = set(found) == set(HOMES) and all(one["done"] for one in found.values())
    return found if busy and any(one["dead"] for one in found.values()) else None


async def test_all_five_run_on_a_broker_of_their_own_and_end_cleanly(tmp_path: Path) -> None:
    """Ready, with traffic and dead letters, reachable by AMQP; Ctrl-C leaves nothing behind."""
    with started(tmp_path, "hopback", "demo", "--http", "0") as demo:
        demo.said("(Ctrl-C) ends it")
        url = demo.said(r"(http://[^/\s]+)/demo")
        ready = get(f"{url}/readyz")
        assert ready is not None
        assert ready.status_code == 200, ready.text
        assert set(ready.json()["systems"]) == set(HOMES)
        page = get(f"{url}/")
        assert page is not None
        assert page.status_code == 200
        user = get(f"{url}/raffle/api/v1/users/none")
        assert user is not None
        assert user.status_code == 404
        connection = await RabbitMQ(demo.said(r"HOPBACK_BROKER=(\S+)")).connect("test")
        await connection.close()
        assert "my-service.events" in _parked(demo, url)
        counters = demo.until(lambda: _counters(url))
        front = get(f"{url}/demo")
        assert front is not None
        assert all(f"<h2>{name}</h2>" in front.text for name in HOMES)
        for one in counters.values():
            assert one["came"] >= one["done"] + one["dead"], counters
        assert "/queues/my-service.events.dlq" in front.text
        table = demo.text.partition("Ctrl-C ends it.")[2].strip().splitlines()
        assert table[0].split() == ["time", "queue", "outcome", "run", "wait", "reason"]
        assert all(re.match(r"[\d:]{8} [\w.-]+ +(retried|parked) ", line) for line in table[1:]), (
            table
        )
        assert demo.end() == 0
        assert demo.text.rstrip().endswith("Stopped. No process is left running.")
        assert not re.search("^Traceback", demo.text, re.MULTILINE)
    assert os.listdir(tmp_path) == ["output"]
    assert get(f"{url}/readyz") is None


def test_one_system_runs_hardened_and_keeps_its_files(tmp_path: Path) -> None:
    """Only what was asked for is there, and without hazards; a second signal is not needed."""
    options = ("--hardened", "--no-traffic", "--folder", "kept", "--http", "0")
    with started(tmp_path, "hopback", "demo", "raffle", *options) as demo:
        demo.said("(Ctrl-C) ends it")
        url = demo.said(r"(http://[^/\s]+)/demo")
        assert "known hazards" not in demo.text
        ready = get(f"{url}/readyz")
        assert ready is not None
        assert ready.json()["systems"] == ["raffle"]
        assert demo.end(signal.SIGTERM) == 0
    assert (tmp_path / "kept" / "raffle").is_dir()


@pytest.mark.broker
def test_all_five_run_on_rabbitmq(amqp_url: str, tmp_path: Path) -> None:
    """The same on a real broker, named by the environment."""
    options = ("demo", "--http", "0")
    with started(tmp_path, "hopback", *options, HOPBACK_BROKER=amqp_url) as demo:
        url = demo.said(r"(http://[^/\s]+)/demo")
        assert "my-service.events" in _parked(demo, url)
        ready = get(f"{url}/readyz")
        assert ready is not None
        assert ready.status_code == 200
        assert demo.end() == 0


def test_the_incident_is_over_after_five_clicks(tmp_path: Path) -> None:
    """Broken, watched, looked at, repaired, re-driven: the five orders are placed after all."""
    command = ("hopback", "demo", "ratatoskr", "--no-traffic", "--http", "0")
    with (
        started(tmp_path, *command, RATATOSKR_RETRY_DELAY_MS="200") as demo,
        sync_playwright() as playwright,
    ):
        url = demo.said(r"(http://[^/\s]+)/demo")
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.goto(f"{url}/demo")
        for step in range(1, 6):
            page.locator(f"#step{step} button").click(timeout=60_000)
            page.wait_for_selector(f"#step{step}.done", timeout=60_000)
        assert "all five orders are placed" in page.locator("#step5").inner_text()
        expect(page.locator("#ratatoskr-dead")).to_have_text("0")
        expect(page.locator("#ratatoskr-done")).to_have_text("5")
        expect(page.locator("#ratatoskr-came")).to_have_text("5")
        browser.close()
        assert demo.end() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("rafle",), 5, "Did you mean raffle?"),
        (("--broker", "http://localhost"), 2, "expected amqp://"),
        (("--broker", "amqp://127.0.0.1:1/"), 7, "Connection refused"),
        (("--http", "nowhere"), 2, "expected PORT"),
        (("--http", "0.0.0.0:0"), 1, "expected an address of this machine only"),
    ],
)
def test_wrong_demo_options_are_refused_with_the_reason(
    arguments: tuple[str, ...], code: int, says: str
) -> None:
    """In words, with the exit code of its kind, and without a traceback."""
    command = [sys.executable, "-m", "hopback", "demo", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == code
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
