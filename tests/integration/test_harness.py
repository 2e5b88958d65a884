"""The private nodes answer, survive a kill and leave no files or processes."""

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


def test_shared_node_gives_each_test_its_own_vhost(rabbitmq: SharedNode, vhost: str) -> None:
    assert vhost in {each["name"] for each in rabbitmq.management.call("GET", "/vhosts")}


def test_node_ends_when_test_run_is_killed() -> None:
    """No server and no folder are left."""
    with subprocess.Popen(
        [sys.executable, "-c", _START_AND_HANG], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        pid, folder = run.stdout.readline().split()
        os.kill(run.pid, signal.SIGKILL)
    _wait_until(lambda: not _runs(int(pid)) and not Path(folder).exists())


def test_shared_database_server_ends_when_test_run_is_killed() -> None:
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


def test_missing_rabbitmq_fails_tests_with_package_name(tmp_path: Path) -> None:
    """They never skip."""
    with pytest.raises(NotInstalled, match="install it with"):
        Installation("nowhere", tmp_path).script("rabbitmq-server")


def test_installed_packages_are_not_installed_again() -> None:
    install(["rabbitmq"])
    assert missing(["rabbitmq-server", "no-such-package-as-this"]) == ["no-such-package-as-this"]


def test_packages_are_queried_from_dpkg_and_not_from_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that another one provides is present."""
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


def test_missing_compiler_is_reported_if_library_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_unknown_purpose_is_refused_with_known_ones() -> None:
    with pytest.raises(ValueError, match=r"among rabbitmq, .*; got rabbitmq-server"):
        install(["rabbitmq-server"])


def test_sigint_ends_processes_of_tests() -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ran.returncode == -signal.SIGINT


def test_sigint_works_in_run_that_was_started_to_ignore_it() -> None:
    """Background runners start processes that ignore SIGINT. The run restores it."""
    this = f"{Path(__file__)}::{test_sigint_ends_processes_of_tests.__name__}"
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
