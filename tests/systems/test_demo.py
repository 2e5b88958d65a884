"""`hopback demo` as a process: start, traffic, page and shutdown."""

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
from tests.systems.processes import get, start_process

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.processes import Process

pytestmark = pytest.mark.xdist_group("systems")


def _parked_counts(demo: Process, url: str) -> dict[str, str]:
    """Wait for parked messages and return their number by queue."""

    def look() -> dict[str, str]:
        answer = get(f"{url}/metrics")
        text = "" if answer is None else answer.text
        return dict(re.findall(r'hopback_parked_total\{.*?queue="(.+?)"\} ([1-9].*)', text))

    return demo.wait_until(look)


def _counters(url: str) -> dict[str, dict[str, int]] | None:
    """Return the counters of the page, or None until every system has done messages and one has
    dead letters.
    """
    answer = get(f"{url}/demo/counters")
    found: dict[str, dict[str, int]] = {} if answer is None else answer.json()
    busy = set(found) == set(HOMES) and all(one["done"] for one in found.values())
    return found if busy and any(one["dead"] for one in found.values()) else None


async def test_demo_runs_five_systems_on_its_own_broker_and_removes_its_files(
    tmp_path: Path,
) -> None:
    """The systems have traffic and dead letters, and AMQP clients can connect. Ctrl-C removes all files."""
    with start_process(tmp_path, "hopback", "demo", "--http", "0") as demo:
        demo.wait_for_output("(Ctrl-C) ends it")
        url = demo.wait_for_output(r"(http://[^/\s]+)/demo")
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
        connection = await RabbitMQ(demo.wait_for_output(r"HOPBACK_BROKER=(\S+)")).connect("test")
        await connection.close()
        assert "my-service.events" in _parked_counts(demo, url)
        counters = demo.wait_until(lambda: _counters(url))
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


def test_demo_of_one_hardened_system_keeps_its_files(tmp_path: Path) -> None:
    """Only that system runs, without hazards. It ends after one SIGTERM."""
    options = ("--hardened", "--no-traffic", "--folder", "kept", "--http", "0")
    with start_process(tmp_path, "hopback", "demo", "raffle", *options) as demo:
        demo.wait_for_output("(Ctrl-C) ends it")
        url = demo.wait_for_output(r"(http://[^/\s]+)/demo")
        assert "known hazards" not in demo.text
        ready = get(f"{url}/readyz")
        assert ready is not None
        assert ready.json()["systems"] == ["raffle"]
        assert demo.end(signal.SIGTERM) == 0
    assert (tmp_path / "kept" / "raffle").is_dir()


@pytest.mark.broker
def test_demo_runs_five_systems_on_rabbitmq(amqp_url: str, tmp_path: Path) -> None:
    """With the broker from the environment."""
    options = ("demo", "--http", "0")
    with start_process(tmp_path, "hopback", *options, HOPBACK_BROKER=amqp_url) as demo:
        url = demo.wait_for_output(r"(http://[^/\s]+)/demo")
        assert "my-service.events" in _parked_counts(demo, url)
        ready = get(f"{url}/readyz")
        assert ready is not None
        assert ready.status_code == 200
        assert demo.end() == 0


def test_incident_of_the_demo_is_repaired_in_five_steps(tmp_path: Path) -> None:
    """Break, watch, inspect, repair, re-drive: the five orders are placed."""
    command = ("hopback", "demo", "ratatoskr", "--no-traffic", "--http", "0")
    with (
        start_process(tmp_path, *command, RATATOSKR_RETRY_DELAY_MS="200") as demo,
        sync_playwright() as playwright,
    ):
        url = demo.wait_for_output(r"(http://[^/\s]+)/demo")
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
    ("arguments", "code", "expected"),
    [
        (("rafle",), 5, "Did you mean raffle?"),
        (("--broker", "http://localhost"), 2, "expected amqp://"),
        (("--broker", "amqp://127.0.0.1:1/"), 7, "Connection refused"),
        (("--http", "nowhere"), 2, "expected PORT"),
        (("--http", "0.0.0.0:0"), 1, "expected an address of this machine only"),
    ],
)
def test_wrong_demo_options_are_refused_with_the_reason(
    arguments: tuple[str, ...], code: int, expected: str
) -> None:
    """With the exit status of the error, without a traceback."""
    command = [sys.executable, "-m", "hopback", "demo", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == code
    assert expected in ran.stderr
    assert "Traceback" not in ran.stderr
