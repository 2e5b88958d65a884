"""Create, fill, count and delete the queues of a run."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pika

from benchmarks.dead_letters import fill_with_dead_letters
from benchmarks.workload import RETRY_TTL_MS, Job, Scenario

if TYPE_CHECKING:
    from benchmarks.contestants import Contestant

__all__ = ["BrokerSetup", "CountsDiffer"]

_FILLED = (
    Scenario.CONSUME,
    Scenario.ROUND_TRIPS,
    Scenario.MOVE,
    Scenario.MOVE_REAL,
    Scenario.RETRY,
    Scenario.FAIL,
    Scenario.PARK,
    Scenario.GROUP,
)
_SETTLE_SECONDS = 15.0


class CountsDiffer(RuntimeError):
    """A queue has an unexpected number of messages after a run, so messages were lost or
    duplicated.

    `surplus` is True if there are only additional messages. Their acks have not reached the broker.
    """

    def __init__(self, where: str, expected: dict[str, int], found: dict[str, int]) -> None:
        self.surplus = all(found[name] >= count for name, count in expected.items())
        super().__init__(f"{where}: expected {expected} messages, found {found}")


@dataclass(slots=True)
class BrokerSetup:
    """A virtual host on a private node. Each run has new queues."""

    host: str
    port: int
    vhost: str
    filler: Contestant

    def job(self, contestant: Contestant, scenario: Scenario, queue_type: str, count: int) -> Job:
        """Create and fill the queues of a run. Returns the job for the client."""
        queue = "bench.dramatiq" if contestant.layout == "dramatiq" else "bench.main"
        job = Job(
            scenario,
            self.host,
            self.port,
            self.vhost,
            queue,
            "bench.target",
            count,
            body=contestant.body,
            queue_type=queue_type,
            variant=contestant.variant,
        )
        with self._channel() as channel:
            self._make(channel, job, contestant.layout)
        if scenario in _FILLED and contestant.layout != "unfilled":
            self._fill(job)
        return job

    def verify(self, job: Job, contestant: Contestant) -> None:
        """Raise CountsDiffer if messages were lost or duplicated."""
        expected = _expected(job)
        with self._channel() as channel:
            found = _await_counts(channel, expected)
        if found != expected:
            where = f"{contestant.name}, {job.scenario}, {job.queue_type}"
            raise CountsDiffer(where, expected, found)

    def _fill(self, job: Job) -> None:
        exchange = "bench.in" if job.scenario == Scenario.RETRY else ""
        filling = Job(
            Scenario.FILL,
            job.host,
            job.port,
            job.vhost,
            job.queue,
            exchange,
            job.count,
            body=job.body,
        )
        if job.scenario in (Scenario.MOVE_REAL, Scenario.GROUP):
            asyncio.run(fill_with_dead_letters(job))
        else:
            self.filler.run(filling)
        with self._channel() as channel:
            found = _await_counts(channel, {job.queue: job.count})
        if found != {job.queue: job.count}:
            raise CountsDiffer("filling", {job.queue: job.count}, found)

    def _make(self, channel: Any, job: Job, layout: str) -> None:
        typed = {"x-queue-type": "quorum"} if job.queue_type == "quorum" else {}
        arguments = dict(typed)
        for name in (job.queue, job.target, "bench.retry", f"{job.queue}.DQ", f"{job.queue}.XQ"):
            channel.queue_delete(name)
        if job.scenario == Scenario.RETRY:
            arguments |= _leads_to("bench.retry")
            channel.queue_declare(
                "bench.retry",
                durable=True,
                arguments={**typed, **_leads_to(job.queue), "x-message-ttl": RETRY_TTL_MS},
            )
        if layout == "dramatiq":
            arguments |= _leads_to(f"{job.queue}.XQ")
        channel.queue_declare(job.queue, durable=True, arguments=arguments)
        channel.queue_declare(job.target, durable=True, arguments=typed)
        channel.exchange_declare("bench.in", "direct", durable=True)
        channel.queue_bind(job.queue, "bench.in", "first")

    def _channel(self) -> _OpenChannel:
        return _OpenChannel(self.host, self.port, self.vhost)


class _OpenChannel:
    """A channel that is only used for a few calls."""

    def __init__(self, host: str, port: int, vhost: str) -> None:
        self._connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, vhost))

    def __enter__(self) -> Any:
        return self._connection.channel()

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _leads_to(queue: str) -> dict[str, object]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def _expected(job: Job) -> dict[str, int]:
    """Return the expected number of messages in each queue after a run."""
    match job.scenario:
        case Scenario.PUBLISH | Scenario.PUBLISH_ONE:
            return {job.queue: job.count}
        case Scenario.MOVE | Scenario.MOVE_REAL | Scenario.FAIL | Scenario.PARK:
            return {job.queue: 0, job.target: job.count}
        case _:
            return {job.queue: 0}


def _await_counts(channel: Any, expected: dict[str, int]) -> dict[str, int]:
    """Wait until the numbers of ready messages are as expected, or until a timeout, and return
    them.

    When a client has disconnected, its last acks may not have been processed yet. The numbers must
    be correct twice in a row.
    """
    deadline = time.monotonic() + _SETTLE_SECONDS
    right = 0
    while True:
        found = {
            name: channel.queue_declare(name, passive=True).method.message_count
            for name in expected
        }
        right = right + 1 if found == expected else 0
        if right == 2 or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
