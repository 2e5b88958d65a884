"""Move failed Celery tasks to a dead-letter queue.

```python
app = Celery("shop", broker="amqp://…")
app.conf.task_acks_late = True
park_failed_tasks(app)
```

When a task has finally failed, its message is published to `QUEUE.dlq` and acknowledged after the
confirm. Retries are still handled by Celery. Workers require late acknowledgement (`acks_late`),
because otherwise the message is already gone when the task fails.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakKeyDictionary

from hopback.errors import UnsafeOperation
from hopback.extras import needs
from hopback.headers import failure_from_exception, failure_from_traceback
from hopback.integrations.address import broker_url
from hopback.integrations.celery_settings import CELERY_RULES, check_settings
from hopback.integrations.header_values import header_values
from hopback.integrations.loop_thread import LoopThread
from hopback.integrations.planned import PlannedQueues, PlanOptions
from hopback.message import Properties, Received
from hopback.policy.decision import Settlement
from hopback.policy.outcome import Park, reason_of
from hopback.runtime.answer import Answer
from hopback.topology.routing import topic_matches

with needs("celery", "hopback.integrations.celery"):
    from celery import bootsteps  # type: ignore[import-untyped]
    from celery.exceptions import (  # type: ignore[import-untyped]
        Ignore,
        Retry,
        Terminated,
        TimeLimitExceeded,
        WorkerLostError,
    )
    from celery.worker.request import Request  # type: ignore[import-untyped]
with needs(
    "celery", "hopback.integrations.celery"
):  # imported last so that the error mentions Celery
    from billiard.einfo import ExceptionWithTraceback  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterable


__all__ = ["CELERY_RULES", "CeleryPlans", "ParkingRequest", "check_settings", "park_failed_tasks"]

_LOG = logging.getLogger("hopback.integrations")

_LONGEST_WAIT_S = 10.0
"""The maximum number of seconds to wait for a publish. The worker is blocked during this time, so
it has to be shorter than the heartbeat. After a timeout the message stays unacknowledged and is
redelivered when the connection closes.
"""

_PARKING: WeakKeyDictionary[Any, CeleryPlans] = WeakKeyDictionary()


def park_failed_tasks(
    app: Any, queues: Iterable[str] | None = None, **options: Unpack[PlanOptions]
) -> CeleryPlans:
    """Make the workers of a Celery application dead-letter failed tasks.

    This must be called before tasks are declared. It does not affect producers.

    Args:
        app: The Celery application.
        queues: The queues to handle. Defaults to all queues.
        options: Options of the plans.
    """
    plans = CeleryPlans(app, None if queues is None else tuple(queues), **options)
    _PARKING[app] = plans
    app.hopback_parks = True  # read by `check_settings`
    app.Task.Request = f"{__name__}:{ParkingRequest.__name__}"
    app.steps["worker"].add(_ParkingStep)
    return plans


class CeleryPlans:
    """Publishes the failed tasks of a Celery application. It runs in the main process of a worker."""

    def __init__(
        self, app: Any, queues: tuple[str, ...] | None, **options: Unpack[PlanOptions]
    ) -> None:
        self._app = app
        self._queues = queues
        options.setdefault("name", app.main or "celery")
        self._given = options.get("publish_to")
        self._plans = PlannedQueues(**options)
        self._thread: LoopThread | None = None

    def start(self) -> None:
        """Check the settings of the tasks, connect and declare the dead-letter queues."""
        tasks = {
            name: task for name, task in self._app.tasks.items() if not name.startswith("celery.")
        }
        early = sorted(name for name, task in tasks.items() if not task.acks_late)
        if early:
            raise UnsafeOperation(
                f"failed tasks cannot be parked. {', '.join(early)} are acked before they run, so "
                "their messages are already deleted. Set `task_acks_late = True`."
            )
        own = f"{__name__}:{ParkingRequest.__name__}"
        others = sorted(name for name, task in tasks.items() if task.Request != own)
        if others:
            raise UnsafeOperation(
                f"failed tasks cannot be parked. {', '.join(others)} have a custom `Request`. Call "
                "park_failed_tasks(app) before they are declared, or derive it from ParkingRequest."
            )
        wanted = [*self._app.amqp.queues.consume_from] if self._queues is None else self._queues
        for queue in wanted:
            if queue not in self._plans.queue_names:
                self._plans.queue(queue, retry=None)
        thread = LoopThread("hopback-parking")
        try:
            thread.run(self._plans.begin(self._given or _app_urls(self._app)))
        except BaseException:
            thread.stop()
            raise
        self._thread = thread

    def stop(self) -> None:
        """Close the connections. Can be called more than once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.run(self._plans.close())
            thread.stop()

    def park(self, message: Any, error: BaseException, trace: str) -> bool:
        """Publish a failed task to the dead-letter queue.

        Returns False if the message must not be acknowledged.
        """
        queue, thread = self.queue_of(message.delivery_info), self._thread
        if queue is None or thread is None:
            _LOG.error(
                "a failed task cannot be parked, because the worker was not started with this app"
            )
            return False
        failure = failure_from_traceback(trace) if trace else failure_from_exception(error)
        answer = Answer(Park(reason_of(error)), failure, error=error)
        ended = asyncio.Event()
        parking = thread.submit(self._park(_convert_delivery(queue, message), answer, ended))
        try:
            return parking.result(_LONGEST_WAIT_S)
        except TimeoutError:
            thread.set(ended)
            _LOG.error(
                "a failed task could not be parked within %g s and stays unacked", _LONGEST_WAIT_S
            )
            return False

    async def _park(self, delivery: Received, answer: Answer, ended: asyncio.Event) -> bool:
        taken = self._plans.take(delivery, ended)
        if taken is None:
            return False
        return await self._plans.conclude(taken, answer) is Settlement.ACK

    def queue_of(self, info: dict[str, Any]) -> str | None:
        """Return the queue of a message, based on its exchange and routing key.

        Celery does not include the queue name in a message.
        """
        exchange, key = info.get("exchange") or "", info.get("routing_key") or ""
        planned = self._plans.queue_names
        if not exchange:
            return key if key in planned else None
        for name in planned:
            queue = self._app.amqp.queues[name]
            for way in queue.bindings or (queue,):
                if way.exchange is None or way.exchange.name != exchange:
                    continue
                kind = way.exchange.type
                if kind in ("fanout", "headers") or (
                    topic_matches(way.routing_key or "", key)
                    if kind == "topic"
                    else (way.routing_key or "") == key
                ):
                    return name
        return None


class ParkingRequest(Request):  # type: ignore[misc]
    """A Celery request that dead-letters its message when the task fails."""

    _failed: tuple[BaseException, str] | None = None

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """Called when the task raises an exception or its process is lost."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        # The process may have been lost after it stored the result.
        stored = getattr(self, "_success_was_stored", None)
        has_succeeded = isinstance(error, WorkerLostError) and stored is not None and stored()
        if not isinstance(error, Ignore | Retry | Terminated) and not has_succeeded:
            self._failed = error, str(exc_info.traceback or "")
        try:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            self._failed = None

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Called when the task exceeds its time limit."""
        if not soft:
            self._failed = TimeLimitExceeded(timeout), ""
        try:
            return super().on_timeout(soft, timeout)
        finally:
            self._failed = None

    def acknowledge(self) -> None:
        """Acknowledge the message. If the task failed, dead-letter it first."""
        failed, self._failed = self._failed, None
        plans = self._plans()
        if failed is None or plans is None or plans.park(self.message, *failed):
            super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        """Reject the message. Failed tasks are dead-lettered unless `requeue` is True."""
        failed, self._failed = self._failed, None
        plans = self._plans()
        if requeue or failed is None or plans is None:
            super().reject(requeue)
        elif plans.park(self.message, *failed):
            super().acknowledge()

    def _plans(self) -> CeleryPlans | None:
        """Return the plans, or None if the queue has no plan or the message has already been
        acknowledged.
        """
        plans = None if self.acknowledged else _PARKING.get(self.app)
        if plans is None or plans.queue_of(self.message.delivery_info) is None:
            return None
        return plans


class _ParkingStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """A worker step that starts the plans after the pool. If there is an error, the worker does not
    start.
    """

    requires = frozenset({"celery.worker.components:Pool"})

    def start(self, parent: Any) -> None:
        pool = type(parent.pool).__module__.rpartition(".")[2]
        if pool in ("eventlet", "gevent"):
            raise UnsafeOperation(
                f"failed tasks cannot be parked by a worker with the pool {pool}. Hopback publishes from "
                "a thread, and this pool replaces threads. Use prefork, threads or solo."
            )
        _PARKING[parent.app].start()

    def stop(self, parent: Any) -> None:
        _PARKING[parent.app].stop()


def _convert_delivery(queue: str, message: Any) -> Received:
    """Convert a Kombu message to a delivery. The body is not decoded."""
    said, info = message.properties, message.delivery_info
    body = message.body
    if isinstance(body, str):
        body = body.encode(message.content_encoding or "utf-8", "surrogateescape")
    own = Properties(
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=header_values(message.headers),
        delivery_mode=said.get("delivery_mode"),
        priority=said.get("priority"),
        correlation_id=said.get("correlation_id"),
        reply_to=said.get("reply_to"),
        expiration=said.get("expiration"),
        message_id=said.get("message_id"),
        timestamp=said.get("timestamp"),
        type=said.get("type"),
        user_id=said.get("user_id"),
        app_id=said.get("app_id"),
        cluster_id=said.get("cluster_id"),
    )
    return Received(
        queue,
        info.get("exchange") or "",
        info.get("routing_key") or "",
        bytes(body),
        own,
        bool(info.get("redelivered")),
    )


def _app_urls(app: Any) -> list[str]:
    """Return the URL of the broker, or one for each node if there are several."""
    with app.connection_for_write() as connection:
        urls = [_url(connection)]
        for other in connection.alt[1:]:
            connection.switch(other)
            urls.append(_url(connection))
        return urls


def _url(connection: Any) -> str:
    if connection.transport.driver_type != "amqp":
        raise UnsafeOperation(
            f"failed tasks can only be parked in RabbitMQ, not in {connection.transport.driver_type}"
        )
    if connection.ssl:
        raise UnsafeOperation(
            'the settings of TLS cannot be read. Pass `publish_to="amqps://…?cacertfile=…"` to '
            "park_failed_tasks"
        )
    return broker_url(
        connection.hostname or "localhost",
        connection.port or 5672,
        user=connection.userid,
        password=connection.password,
        virtual_host=connection.virtual_host or "/",
    )
