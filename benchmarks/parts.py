"""Measure the cost of each part of the work on a message, without a broker: `python -m
benchmarks.parts --write`.

The CPU time of one process is measured, and the best of several passes over 2,000 messages is used.
The result is like a profile, but without the overhead of profiling. The messages are those of
`benchmarks.dead_letters`, and messages without headers.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import time
from typing import TYPE_CHECKING, Any

from benchmarks.dead_letters import real_headers
from benchmarks.measured_sections import Table, stamp_now
from benchmarks.report import keep_table
from benchmarks.workload import BODY
from hopback.headers import failure_from_exception
from hopback.message import Properties
from hopback.ops.contract.requests import GroupBy
from hopback.ops.jobs.cursor import mark_of
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.digest import content_digest
from hopback.ops.messages.grouping import Grouping
from hopback.policy.decide import decide
from hopback.policy.decision import Publish
from hopback.policy.effects import Occasion, effects
from hopback.policy.outcome import Retry
from hopback.policy.redrive import RedriveOccasion, Redriver
from hopback.runtime.answer import ConsumeSession, HeldDelivery
from hopback.runtime.handler import HandlerOptions, inspect_handler
from hopback.runtime.settling import Environment, Settling
from hopback.runtime.worker import FunctionRunner, OneByOne
from hopback.topology.plan import Count, Leave, Parking, Plan, Redrive, Return, Route, Tier
from hopback.version import BrokerVersion
from hopback.wire.events import Delivered
from hopback.wire.frames import content_frames
from hopback.wire.properties import encode_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hopback.message import Message

_MESSAGES = 2_000
_PASSES = 9
_QUEUE, _DEAD = "orders", "orders.dead"
_ROUTE = b"\x00" + bytes((len(_DEAD),)) + _DEAD.encode()


def _plan(attempts: int) -> Plan:
    return Plan(
        queue=_QUEUE,
        attempts=attempts,
        tiers=(Tier("retry", 100, (Route("", "orders.retry", "orders.retry"),)),),
        leave=Leave.PUBLISH,
        returns=Return.QUEUE,
        parking=Parking(_DEAD, Leave.PUBLISH, "", _DEAD),
        count=Count.HEADER,
        redrive=Redrive("", _QUEUE),
    )


def _deliveries(*, real: bool) -> list[Delivered]:
    """Return messages as they are received, before they are decoded."""
    found = []
    for number in range(_MESSAGES):
        properties = Properties(
            content_type="application/json",
            delivery_mode=2,
            headers=real_headers(_QUEUE, number) if real else {},
            message_id=f"m-{number}",
            correlation_id=f"c-{number}",
            type="order.created",
        )
        raw = encode_properties(properties)
        one = Delivered(1, number, False, b"c", _ROUTE, raw, BODY.encode())
        one.queue = _DEAD
        found.append(one)
    return found


def _best(work: Callable[[list[Delivered]], object], *, real: bool, decoded: bool) -> float:
    """Return the CPU time per message in microseconds."""
    passes = []
    for _ in range(_PASSES):
        messages = _deliveries(real=real)
        if decoded:
            for one in messages:
                _ = one.properties
        gc.collect()
        began = time.process_time()
        work(messages)
        passes.append((time.process_time() - began) / _MESSAGES * 1e6)
    return min(passes)


def _parts(*, real: bool) -> Iterator[tuple[str, float]]:
    plan = _plan(3)
    redriver = Redriver(plan, plan.redrive, RedriveOccasion(1_800_000_000.0, "j-1"))

    def group(messages: list[Delivered]) -> None:
        grouping = Grouping(GroupBy.FINGERPRINT)
        for place, one in enumerate(messages, 1):
            grouping.see(one, place, None)

    made = [redriver.message(one).properties for one in _deliveries(real=real)]
    rows: tuple[tuple[str, Callable[[list[Delivered]], object], bool], ...] = (
        ("re-drive: make the message from bytes",
         lambda them: list(map(redriver.raw_message, them)), False),
        ("re-drive: the mark of the journal", lambda them: list(map(mark_of, them)), False),
        ("decode properties and headers", lambda them: [one.properties for one in them], False),
        ("re-drive, careful path: make the message",
         lambda them: list(map(redriver.message, them)), True),
        ("of that its encoding", lambda _: list(map(encode_properties, made)), True),
        ("group by fingerprint, with decoding", group, False),
        ("read for a list: cause, attempts, envelope, digest",
         lambda them: [read_dead_letter(one, 1) for one in them], True),
        ("of that the digest", lambda them: list(map(content_digest, them)), True),
    )  # fmt: skip
    for name, work, decoded in rows:
        yield name, _best(work, real=real, decoded=decoded)


def _raise_in_handler() -> ValueError:
    """Return an exception whose traceback has three frames."""

    def ask() -> None:
        raise ValueError("the warehouse does not know article 4711")

    def handle() -> None:
        ask()

    try:
        handle()
    except ValueError as error:
        return error


def _steps() -> Iterator[tuple[str, float]]:
    """Yield the cost of each step of a run that fails and is retried."""
    plan, error, version = _plan(3), _raise_in_handler(), BrokerVersion(3, 10, 8)
    occasion = Occasion(
        1_800_000_000.0, "worker-1", failure_from_exception(error), copy_id="0" * 24
    )
    decision = decide(_deliveries(real=False)[0], Retry("no"), plan, version=version)
    first = effects(decision, _deliveries(real=False)[0], plan, occasion)[0]
    if not isinstance(first, Publish):
        raise TypeError(f"expected a publish, got {first}")
    message = first.message

    rows: tuple[tuple[str, Callable[[list[Delivered]], object]], ...] = (
        ("of that the record of the exception",
         lambda them: [failure_from_exception(error) for _ in them]),
        ("of that the decision",
         lambda them: [decide(one, Retry("no"), plan, version=version) for one in them]),
        ("of that the headers of the message",
         lambda them: [effects(decision, one, plan, occasion) for one in them]),
        ("of that its encoding",
         lambda them: [encode_properties(message.properties) for _ in them]),
    )  # fmt: skip
    for name, work in rows:
        yield name, _best(work, real=False, decoded=True)


class _SettlingChannel:
    """A channel that settles immediately."""

    def ack(self, tag: int) -> None:
        pass


_AWAITS = 10


async def _fail(payload: dict[str, Any]) -> None:
    raise ValueError("the warehouse does not know article 4711")


async def _await(payload: dict[str, Any]) -> None:
    for _ in range(_AWAITS):
        await asyncio.sleep(0)


async def _awaits_alone() -> float:
    """Return the cost of the awaits in `_await`, in a hundred tasks that do nothing else."""
    passes = []
    for _ in range(_PASSES):
        left = iter(range(_MESSAGES))

        async def work(left: Iterator[int] = left) -> None:
            for _ in left:
                await _await({})

        began = time.process_time()
        await asyncio.gather(*(work() for _ in range(100)))
        passes.append((time.process_time() - began) / _MESSAGES * 1e6)
    return min(passes)


async def _run_cost(handle: Callable[..., Any], attempts: int = 3) -> float:
    """Return the cost of a run from the delivery to the ack. If the run fails, this includes the
    frames of a publish.
    """
    plan, environment, loop = _plan(attempts), Environment(), asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []

    def confirm() -> None:
        confirmed, waiting[:] = waiting[:], []
        for fate in confirmed:
            fate.set_result(None)

    async def publish(message: Message, ended: asyncio.Event | None = None) -> None:
        raw = encode_properties(message.properties, default_mode=2)
        content_frames([], 1, b"", raw, message.body, 131_072)
        if not waiting:
            loop.call_soon(confirm)
        waiting.append(loop.create_future())
        await waiting[-1]

    options = HandlerOptions(concurrency=100)
    run = FunctionRunner(inspect_handler(_QUEUE, handle, options), plan, publish, environment.bus)
    settling = Settling(plan, publish, environment)
    work = OneByOne(_QUEUE, options, run, settling, None, lambda _: None)
    session = ConsumeSession(_SettlingChannel(), BrokerVersion(3, 10, 8))  # type: ignore[arg-type]
    passes = []
    for _ in range(_PASSES):
        messages = _deliveries(real=False)
        gc.collect()
        began = time.process_time()
        for first in range(0, _MESSAGES, 200):
            for one in messages[first : first + 200]:
                work.submit(HeldDelivery(one, session))
            await work.finish()
        passes.append((time.process_time() - began) / _MESSAGES * 1e6)
    await work.stop()
    if work.settled_count != _PASSES * _MESSAGES:
        raise RuntimeError(
            f"expected {_PASSES * _MESSAGES} deliveries settled, got {work.settled_count}"
        )
    return min(passes)


def main() -> int:
    """Measure and print the table, and write it if `--write` is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parts", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="write the table to benchmarks/RESULTS.md"
    )
    options = parser.parse_args()
    plain, real = dict(_parts(real=False)), dict(_parts(real=True))
    failing = {
        "a failing run, retried: record, decide, write, publish, ack": asyncio.run(
            _run_cost(_fail)
        ),
        **dict(_steps()),
        "a failing run, parked": asyncio.run(_run_cost(_fail, attempts=1)),
        f"a run whose handler awaits {_AWAITS} times: decode, run, ack": asyncio.run(
            _run_cost(_await)
        ),
        "of that the awaits alone": asyncio.run(_awaits_alone()),
    }
    lines = [
        f"CPU in one process without any broker or socket, the best of {_PASSES} passes. 1 KiB of JSON.",
        "A real dead letter has 20 headers, including the records of two deaths and of the failure.",
        "",
        "| | µs, no headers | µs, a real dead letter |",
        "|---|---|---|",
        *(f"| {name} | {plain[name]:.1f} | {real[name]:.1f} |" for name in real),
        *(f"| {name} | {cost:.1f} | |" for name, cost in failing.items()),
        "",
    ]
    print("\n".join(lines))
    if options.write:
        stamp = stamp_now("", os.getloadavg()[0])
        keep_table(Table("parts", "The parts of the work on one message", stamp, "\n".join(lines)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
