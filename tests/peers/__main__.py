"""Run the suites of other projects and write the results to docs/reference/peers.md.

    python -m tests.peers [--only SUITE …] [--brokers BROKER …] [--page]

Each broker runs in a network namespace that this command creates as root, so a suite cannot reach
any other broker. RabbitMQ 4.0 and 4.3 are included if `make test-brokers` has built them. `--page`
writes the page from the stored results.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness.installation import HOST
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import SUITES as DEBIANS
from tests.harness.versions import installations
from tests.peers import environment
from tests.peers.docker import docker_at
from tests.peers.page import write_page
from tests.peers.suites import SUITES, TEST_SECONDS, Suite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PROFILES = ("3.10", "4.0", "4.3")
_PLUGIN = Path(__file__).parent / "inside"


def brokers() -> tuple[str, ...]:
    """Return the installed RabbitMQ, those in chroots, and the profiles of `hopback broker`."""
    built = tuple(
        f"rabbitmq-{DEBIANS[suite]}"
        for suite, found in installations().items()
        if found.root.is_dir()
    )
    return ("rabbitmq", *built, *(f"hopback-{profile}" for profile in _PROFILES))


def main(arguments: Sequence[str]) -> int:
    """Run the selected suites. Return 1 if a test fails only on `hopback broker`, without a known reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[suite.name for suite in SUITES])
    parser.add_argument("--brokers", nargs="+", choices=brokers(), default=brokers())
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    selected = [suite for suite in SUITES if options.only is None or suite.name in options.only]
    if options.inside:
        return _inside(options.inside, selected)
    if not options.page:
        environment.create()
        for broker in options.brokers:
            _run_in_namespace(broker, selected)
    unexplained = write_page(_results())
    for row in unexplained:
        sys.stderr.write(f"hopback: passes on RabbitMQ and fails on hopback broker: {row}\n")
    return 1 if unexplained else 0


def _run_in_namespace(broker: str, suites: list[Suite]) -> None:
    if os.geteuid() != 0:
        raise SystemExit("hopback: a network namespace takes root; run `make test-peers` as root")
    again = [sys.executable, "-m", "tests.peers", "--inside", broker]
    only = ["--only", *(suite.name for suite in suites)]
    subprocess.run(["unshare", "--net", *again, *only], check=True)


def _results() -> dict[str, dict[str, object]]:
    """Return the stored results by broker."""
    found = {}
    for broker in brokers():
        path = environment.WORK / "results" / f"{broker}.json"
        if path.exists():
            found[broker] = json.loads(path.read_text())
    return found


# Inside the namespace.


def _inside(broker: str, suites: list[Suite]) -> int:
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]  # two header lines
    if (names := [line.split(":")[0].strip() for line in lines]) != ["lo"]:
        raise SystemExit(f"hopback: expected a network namespace with lo alone, got {names}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    kept = environment.WORK / "results" / f"{broker}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(kept.read_text()) if kept.exists() else {"suites": {}}
    for suite in suites:
        # A new broker for each suite, without the state of earlier suites.
        # Network namespaces share the file system.
        docker = Path(f"/tmp/hopback-peers-{broker}.sock")
        with _run_broker(broker) as version, docker_at(docker) as host:
            started = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
            clock = time.monotonic()
            found = _run(broker, suite, host)
            found["begun"] = started
            found["seconds"] = round(time.monotonic() - clock)
            known["suites"][suite.name] = found
            known["version"] = version
            kept.write_text(json.dumps(known))
            passed = sum(outcome == "passed" for outcome in found["outcomes"].values())
            total = len(found["outcomes"])
            sys.stderr.write(f"{broker}: {suite.name}: {passed} of {total} passed\n")
    return 0


@contextmanager
def _run_broker(broker: str) -> Iterator[str]:
    """Start the broker on the default ports and yield its version."""
    kind, _, which = broker.partition("-")
    if kind == "hopback":
        command = [sys.executable, "-m", "hopback", "broker", "--profile", which]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            for _ in range(3):
                process.stdout.readline()
            yield which
        finally:
            process.terminate()
            process.wait()
        return
    chroots = {DEBIANS[suite]: found for suite, found in installations().items()}
    installation = chroots[which] if which else HOST
    with RabbitNode(installation, amqp_port=5672, management_port=15672) as node:
        yield str(node.management.call("GET", "/overview")["rabbitmq_version"])


def _run(broker: str, suite: Suite, docker_host: str) -> dict[str, Any]:
    folder = environment.WORK / "results"
    request = folder / f"{broker}-{suite.name}-asked.json"
    output = folder / f"{broker}-{suite.name}-told.json"
    output.unlink(missing_ok=True)
    request.write_text(json.dumps({"left_out": list(suite.left_out), "results": str(output)}))
    paths = [str(environment.source_of(suite.package) / path) for path in suite.paths]
    command = [str(environment.python()), "-m", "pytest", "-q", "-p", "hopback_peers"]
    limits = [f"--timeout={TEST_SECONDS}", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # pytest's default traceback parses the source again. If that fails in Python 3.11 (a
    # SystemError), the whole run ends.
    limits.append("--tb=native")
    with (folder / f"{broker}-{suite.name}.log").open("w") as log:
        ended = "in time"
        try:
            subprocess.run(
                [*command, *limits, *suite.arguments, *paths],
                cwd=environment.source_of(suite.package),
                env={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "HOME": str(folder),
                    "LANG": "C.UTF-8",
                    "PYTHONPATH": str(_PLUGIN),
                    "DOCKER_HOST": docker_host,
                    "HOPBACK_PEERS": str(request),
                    **suite.environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=suite.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            ended = "cut off"
    empty: dict[str, object] = {"outcomes": {}, "words": {}}
    found = json.loads(output.read_text()) if output.exists() else empty
    return {**found, "ended": ended}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
