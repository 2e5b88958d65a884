"""Measure the CPU time of each command on dead letters: `python -m benchmarks.admin_commands
--write`.

A private RabbitMQ contains fifty dead letters. Each command runs as a process with the default
store, which is a SQLite file, and prints a table. `watch` is not included because it runs until it
is stopped. `--write` writes the table to benchmarks/ADMIN.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pika
from tests.harness.rabbitmq import RabbitNode

from benchmarks.admin import write_section

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

_GOAL_S = 0.4
_DEAD_LETTERS = 50
_DLQ = "orders.dlq"
_COUNTED_S = 6.0  # Seconds. The management API updates its counts every 5 s.

_COMMANDS = (
    f"dlq ls | dlq show {_DLQ} | dlq groups {_DLQ} | dlq peek {_DLQ} | dlq get {_DLQ} 3 | dlq errors"
    f" | dlq search C-00012 | dlq export {_DLQ} --to NEW | dlq import EXPORTED --yes --reason bench"
    f" | dlq redrive {_DLQ} --dry-run | dlq redrive {_DLQ} --yes --reason bench"
    f" | dlq discard {_DLQ} --yes --reason bench"
    f" | dlq edit {_DLQ} 3 --header a=b --yes --reason bench | dlq restore-limit {_DLQ} --yes --reason bench"
    f" | dlq notes {_DLQ} | dlq history {_DLQ} | dlq filters {_DLQ} | dlq candidates | dlq add {_DLQ}"
    " | dlq ignore orders | dlq forget orders | jobs ls | audit"
)
_MAY_FAIL = ("dlq restore-limit",)  # no limit was lifted, so the command reports an error


def _fill(channel: BlockingChannel) -> None:
    """Fill the queue and reject all messages."""
    for name in ("orders", _DLQ):
        channel.queue_purge(name)
    for number in range(_DEAD_LETTERS):
        body = b'{"order": %d, "customer": "C-%05d"}' % (number, number)
        properties = pika.BasicProperties(delivery_mode=2, headers={"error": "TimeoutError: bank"})
        channel.basic_publish("", "orders", body, properties)
    for _ in range(_DEAD_LETTERS):
        taken = None
        while taken is None:
            taken, _, _ = channel.basic_get("orders")
        channel.basic_reject(taken.delivery_tag, requeue=False)


def _cpu_s(arguments: list[str], environment: dict[str, str]) -> float:
    """Return the user and system time of a run in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "hopback", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and not " ".join(arguments).startswith(_MAY_FAIL):
        raise RuntimeError(f"{arguments}: {done.returncode}: {done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _measure(rounds: int) -> list[str]:
    rows, slow = [], []
    with tempfile.TemporaryDirectory() as folder, RabbitNode() as node:
        channel = pika.BlockingConnection(pika.URLParameters(node.url)).channel()
        arguments_ = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": _DLQ}
        channel.queue_declare("orders", durable=True, arguments=arguments_)
        channel.queue_declare(_DLQ, durable=True)
        environment = {
            **os.environ,
            "HOPBACK_BROKER": node.url,
            "HOPBACK_MANAGEMENT": node.management_url,
            "HOPBACK_FORMAT": "table",
            "XDG_STATE_HOME": folder,
        }
        files = {"NEW": Path(folder) / "new.ndjson", "EXPORTED": Path(folder) / "old.ndjson"}
        _fill(channel)
        time.sleep(_COUNTED_S)
        _cpu_s(["dlq", "export", _DLQ, "--to", str(files["EXPORTED"])], environment)
        for command in _COMMANDS.split(" | "):
            arguments = [str(files.get(word, word)) for word in command.split()]
            took = []
            for _ in range(rounds):
                _fill(channel)
                files["NEW"].unlink(missing_ok=True)
                took.append(_cpu_s(arguments, environment))
            median = statistics.median(took)
            rows.append(
                f"| `hopback {command}` | {median:.2f} | {min(took):.2f} | {max(took):.2f} |"
            )
            print(rows[-1], flush=True)
            if median > _GOAL_S and command.startswith("dlq"):
                slow.append(command)
    return [
        f"{_DEAD_LETTERS} dead letters on a private RabbitMQ, the store a SQLite file; each command"
        f" {rounds} times, load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores.\n",
        "| seconds of processor time | median | lowest | highest |\n|---|---|---|---|",
        *rows,
        f"\nCommands on dead letters that take more than {_GOAL_S} s: {', '.join(slow) or 'none'}",
    ]


def main() -> int:
    """Measure and print the table, and write it if `--write` is given."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.admin_commands", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = _measure(options.rounds)
    print(lines[-1])
    if options.write:
        write_section("Commands", lines)
    return 0 if lines[-1].endswith(": none") else 1


if __name__ == "__main__":
    raise SystemExit(main())
