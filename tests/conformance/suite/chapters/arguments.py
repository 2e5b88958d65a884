"""Queue arguments that queue types refuse or ignore."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopback.errors import BrokerError, PreconditionFailed
from hopback.topology.model import Queue, QueueType
from tests.conformance.suite.chapters.arrangements import V4_0, V4_3
from tests.conformance.suite.row import expect, row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hopback.fields import Headers
    from tests.conformance.suite.subject import Subject

_QUORUM = QueueType.QUORUM


async def _check_refusals(subject: Subject, queues: Iterable[Queue]) -> None:
    """Check that each declare gives 406."""
    for queue in queues:
        error = await subject.error_of(lambda channel, queue=queue: channel.declare_queue(queue))  # type: ignore[misc]
        expect(isinstance(error, PreconditionFailed), f"{queue} gives 406, not {error!r}")


@row("5.9a", "A quorum queue refuses priority, mode and version arguments")
async def quorum_arguments(subject: Subject) -> None:
    wrong: Headers = {"x-max-priority": 5, "x-queue-mode": "lazy", "x-queue-version": 2}
    queues = [Queue(subject.name(), _QUORUM, arguments={name: wrong[name]}) for name in wrong]
    await _check_refusals(subject, queues)


@row("5.9b", "A quorum queue must be durable, and cannot be exclusive or auto-delete")
async def quorum_flags(subject: Subject) -> None:
    name = subject.name()
    fleeting = Queue(name, _QUORUM, durable=False)
    alone = Queue(name, _QUORUM, exclusive=True)
    await _check_refusals(subject, [fleeting, alone, Queue(name, _QUORUM, auto_delete=True)])


@row("5.9c", "The server cannot name a quorum queue")
async def quorum_name(subject: Subject) -> None:
    await _check_refusals(subject, [Queue("", _QUORUM)])


@row("5.9d", "A classic queue refuses the arguments of quorum queues")
async def classic_arguments(subject: Subject) -> None:
    wrong: Headers = {"x-dead-letter-strategy": "at-least-once", "x-delivery-limit": 5}
    queues = [Queue(subject.name(), arguments={name: wrong[name]}) for name in wrong]
    await _check_refusals(subject, queues)


@row("5.9e", "Both types accept unknown arguments without an error")
async def unknown_arguments(subject: Subject) -> None:
    for kind in (QueueType.CLASSIC, _QUORUM):
        name = await subject.queue(kind, {"x-dead-leter-exchange": "typo", "own": 1})
        await subject.put(name)
        await subject.holds(name, 1)


@row("5.9f", "Values of the wrong type or range are refused with 406")
async def wrong_values(subject: Subject) -> None:
    wrong: tuple[tuple[str, object], ...] = (
        ("x-max-length", -1),
        ("x-max-length", "5"),
        ("x-max-length-bytes", -1),
        ("x-overflow", "explode"),
        ("x-dead-letter-exchange", 5),
        ("x-max-priority", 256),
        ("x-max-priority", -1),
        ("x-single-active-consumer", "yes"),
    )
    queues = [Queue(subject.name(), arguments={name: value}) for name, value in wrong]  # type: ignore[dict-item]
    await _check_refusals(subject, queues)


@row("5.9g", "An unknown queue type is refused with 406")
async def unknown_type(subject: Subject) -> None:
    await _check_refusals(subject, [Queue(subject.name(), arguments={"x-queue-type": "superb"})])


@row("5.9h", "Every version accepts reject-publish-dlx on a quorum queue")
async def unsupported_overflow(subject: Subject) -> None:
    await subject.quorum({"x-overflow": "reject-publish-dlx", "x-max-length": 2})


@row("5.9i", "A quorum queue refuses an unknown dead-letter strategy")
async def unknown_strategy(subject: Subject) -> None:
    queue = Queue(subject.name(), _QUORUM, arguments={"x-dead-letter-strategy": "maybe"})
    await _check_refusals(subject, [queue])


@row("9.10a", "x-queue-version 1 is refused on 4.3")
async def old_queue_version(subject: Subject) -> None:
    queue = Queue(subject.name(), arguments={"x-queue-version": 1})
    if subject.version >= V4_3:
        await _check_refusals(subject, [queue])
    else:
        await subject.declare(queue)


@row("9.10b", "x-queue-mode is still accepted by classic queues")
async def lazy_mode(subject: Subject) -> None:
    await subject.classic({"x-queue-mode": "lazy"})


@row("9.10c", "Quorum queues accept x-consumer-timeout. Classic queues refuse it on 4.3")
async def consumer_timeout_argument(subject: Subject) -> None:
    await subject.quorum({"x-consumer-timeout": 60_000})
    queue = Queue(subject.name(), arguments={"x-consumer-timeout": 60_000})
    if subject.version >= V4_3:
        await _check_refusals(subject, [queue])
    else:
        await subject.declare(queue)


@row("9.10d", "A transient queue can still be declared and disappears like other transient queues")
async def transient_queue(subject: Subject) -> None:
    queue = Queue(subject.name(), durable=False)
    try:
        await subject.declare(queue)
    except BrokerError:
        expect(subject.version >= V4_0, "only newer brokers refuse")
        raise
    await subject.put(queue.name)
    await subject.holds(queue.name, 1)
