"""The private nodes themselves: they answer, survive their own death, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.harness.installation import Installation, NotInstalled
from tests.harness.packages import PURPOSES, install, missing, packages_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

_START_AND_HANG = """
import sys, time
from tests.harness.rabbitmq import RabbitNode
node = RabbitNode().start()
print(node.pid, node.folder, flush=True)
time.sleep(600)
"""

_BEGIN_AND_HANG = """
import os, time
from tests.harness.shared import begin_run, shared_postgres
begin_run()
print(shared_postgres().create_database(), flush=True)
time.sleep(600)
"""


def test_the_shared_node_answers_and_gives_each_test_its_own_vhost(
    rabbitmq: SharedNode, vhost: str
) -> None:
    """The run's node serves its HTTP API and knows the virtual host made for this test."""
    assert vhost in {each["name"] for each in rabbitmq.management.call("GET", "/vhosts")}


def test_a_node_dies_with_the_process_that_started_it() -> None:
    """When the test run itself is killed with -9, no server and no folder stay behind."""
    with subprocess.Popen(
        [sys.executable, "-c", _START_AND_HANG], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        pid, folder = run.stdout.readline().split()
        os.kill(run.pid, signal.SIGKILL)
    _wait_until(lambda: not _runs(int(pid)) and not Path(folder).exists())


def test_the_shared_database_server_dies_with_the_run() -> None:
    """When the run's main process is killed with -9, nobody answers any more."""
    with subprocess.Popen(
        [sys.executable, "-c", _BEGIN_AND_HANG], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        url = run.stdout.readline().strip()
        psycopg.connect(url).close()
        os.kill(run.pid, signal.SIGKILL)
    _wait_until(lambda: not _answers(url))


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_missing_server_is_a_failure_that_says_what_to_install(tmp_path: Path) -> None:
    """Without RabbitMQ the broker tests fail, naming the package; they never skip."""
    with pytest.raises(NotInstalled, match="install it with"):
        Installation("nowhere", tmp_path).script("rabbitmq-server")


def test_what_is_installed_is_not_installed_again() -> None:
    """Installing packages that are there is nothing to do; a missing one is told as missing."""
    install(["rabbitmq"])
    assert missing(["rabbitmq-server", "no-such-package-as-this"]) == ["no-such-package-as-this"]


def test_packages_are_asked_of_dpkg_and_not_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gcc on PATH says nothing about headers; a package that another one provides is there."""
    _pretend_dpkg(
        tmp_path,
        "installed|gcc, c-compiler",
        "installed|libc6-dev, libc-dev (= 2.36)",
        "installed|nodejs, nodejs-legacy, npm",
        "unpacked|chromium, www-browser",
        "config-files|postgresql, ",
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    every = packages_for(["c-client", "node-client", "browser", "postgresql"])
    assert missing(every) == ["librabbitmq-dev", "chromium", "postgresql"]


def test_a_machine_with_the_library_and_without_a_compiler_lacks_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each package counts by itself, whichever the others are."""
    _pretend_dpkg(tmp_path, "installed|librabbitmq-dev, ", "installed|libc6-dev, ")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing(PURPOSES["c-client"]) == ["gcc"]


def _pretend_dpkg(folder: Path, *packages: str) -> None:
    """A machine on which dpkg-query lists these packages."""
    listing = folder / "listing"
    listing.write_text("\n".join(packages) + "\n")
    program = folder / "dpkg-query"
    program.write_text(f'#!/bin/sh\nwhile read -r line; do echo "$line"; done <{listing}\n')
    program.chmod(0o755)


def test_a_purpose_that_is_none_is_refused_by_name() -> None:
    """A target that asks for what nobody declared fails, and is told what there is."""
    with pytest.raises(ValueError, match=r"among rabbitmq, .*; got rabbitmq-server"):
        install(["rabbitmq-server"])


def test_processes_of_a_test_can_be_interrupted() -> None:
    """SIGINT ends what a test starts, as Ctrl-C would."""
    program = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ran.returncode == -signal.SIGINT


def test_they_can_in_a_run_that_was_started_to_ignore_it() -> None:
    """Background runners let what they start ignore SIGINT: the run sets the signals it relies on."""
    this = f"{Path(__file__)}::{test_processes_of_a_test_can_be_interrupted.__name__}"
    ignoring = [
        "sh",
        "-c",
        "trap '' INT; exec \"$@\"",
        "sh",
        sys.executable,
        "-m",
        "pytest",
        *("-q", "-p", "no:schemathesis"),
        this,
    ]
    ran = subprocess.run(ignoring, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def _runs(pid: int) -> bool:
    """Whether the process is there and alive: a dead one may wait for its burial."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it is still there after 20 seconds"
        time.sleep(0.1)
