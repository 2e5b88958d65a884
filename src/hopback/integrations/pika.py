"""Failure plans for pika consumers.

Existing callbacks don't need to be changed:

```python
with PikaPlans(parameters) as plans:
    plans.queue("orders", retry=["10s", "1m"])
    plans.consume(channel, "orders", on_message)
    channel.start_consuming()
```

The callback settles messages with `basic_ack`, `basic_nack` or `basic_reject` as usual. Messages
are retried if the callback raises an exception or if it requeues them. They are dead-lettered after
a reject without requeue. Deliveries that are not settled by the callback stay unsettled.

With a `BlockingChannel`, settling blocks until the message has been moved. Heartbeats are still
processed. Other adapters do not block and settle the delivery later.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Self, Unpack

from hopback.errors import UnsafeOperation
from hopback.extras import needs
from hopback.integrations.address import broker_url
from hopback.integrations.foreign_delivery import (
    ForeignDelivery,
    answer_of_outcome,
    answer_to_reject,
    answer_to_requeue,
)
from hopback.integrations.header_values import header_values
from hopback.integrations.loop_thread import LoopThread
from hopback.integrations.planned import PlannedQueues, PlanOptions
from hopback.message import Properties, Received
from hopback.policy.decision import Settlement
from hopback.policy.outcome import FAILURES, Rule
from hopback.runtime.answer import DONE, Answer
from hopback.runtime.worker import answer_for

with needs("pika", "hopback.integrations.pika"):
    from pika.adapters.blocking_connection import BlockingChannel  # type: ignore[import-untyped]
    from pika.credentials import ExternalCredentials, PlainCredentials  # type: ignore[import-untyped]
    from pika.exceptions import AMQPError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from pika.connection import Parameters  # type: ignore[import-untyped]

    from hopback.runtime.app import Waits

__all__ = ["PikaPlans", "PlannedChannel", "parameters_urls"]

_LOG = logging.getLogger("hopback.integrations")

_BETWEEN_HEARTBEATS_S = 0.5
"""Seconds between two times at which heartbeats are processed. This is longer than a confirm
usually takes, and much shorter than a heartbeat interval.
"""


class PikaPlans:
    """Failure plans for queues consumed with pika. Works with all adapters.

    Use this as a context manager. Messages are published on separate connections with the same
    parameters, in a background thread. If there are several parameters, their hosts are tried in
    order, with the other settings of the first one. If the process forks, create it after the fork.
    """

    def __init__(
        self, parameters: Parameters | Iterable[Parameters], **options: Unpack[PlanOptions]
    ) -> None:
        self._plans = PlannedQueues(**options)
        self._given = options.get("publish_to")
        self._parameters = parameters
        self._thread: LoopThread | None = None
        self._channels: dict[Any, PlannedChannel] = {}

    def queue(
        self,
        name: str,
        *,
        retry: Waits = ("30s", "5m", "30m"),
        attempts: int | None = None,
        rules: Iterable[Rule] = (),
    ) -> None:
        """Add a plan for a queue. This must be called before the first `consume`.

        The options are the same as for `App.queue`.
        """
        self._plans.queue(name, retry=retry, attempts=attempts, rules=rules)

    def start(self) -> None:
        """Connect and declare the queues of the plans. Called automatically by `consume`."""
        if self._thread is not None:
            return
        thread = LoopThread("hopback-plans")
        try:
            broker = self._given or parameters_urls(self._parameters)
            thread.run(self._plans.begin(broker))
        except BaseException:
            thread.stop()
            raise
        self._thread = thread

    def close(self) -> None:
        """Wait for pending publishes and close the connections. Can be called more than once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.run(self._plans.close())
            thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def consume(
        self,
        channel: Any,
        queue: str,
        on_message_callback: Callable[[Any, Any, Any, bytes], object],
        auto_ack: bool = False,
        **options: Any,
    ) -> str:
        """Start consuming a queue with a failure plan, and return the consumer tag."""
        if auto_ack:
            raise UnsafeOperation(
                f"queue {queue!r} cannot be consumed with auto_ack=True. The broker deletes a message "
                "when it sends it, so a failed message could not be retried or parked. Remove auto_ack "
                "and ack at the end of the callback."
            )
        self.start()
        planned = self.callback(queue, on_message_callback)
        tag: str = channel.basic_consume(queue, planned, **options)
        return tag

    def callback(
        self, queue: str, callback: Callable[[Any, Any, Any, bytes], object]
    ) -> Callable[[Any, Any, Any, bytes], None]:
        """Wrap a callback so that it can be passed to `basic_consume`.

        Must be used without `auto_ack`.
        """
        if queue not in self._plans.queue_names:
            raise UnsafeOperation(
                f"queue {queue!r} has no plan: expected one of {', '.join(self._plans.queue_names)}"
            )

        def planned(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            known = self._channels.get(channel)
            if known is None:
                if self._thread is None:
                    raise RuntimeError(
                        "expected plans that were started before the consumer and are not closed"
                    )
                # Remove closed channels. A client that reconnects uses a new channel each time.
                self._channels = {one: of for one, of in self._channels.items() if one.is_open}
                known = self._channels[channel] = PlannedChannel(channel, self._plans, self._thread)
            known.run(queue, callback, method, properties, body)

        return planned


class PlannedChannel:
    """A wrapper for a channel that settles deliveries according to a plan."""

    def __init__(self, channel: Any, plans: PlannedQueues, thread: LoopThread) -> None:
        self._own = channel
        self._plans = plans
        self._thread = thread
        self._ended = asyncio.Event()
        self._in_hand: dict[int, ForeignDelivery] = {}
        self._blocks = isinstance(channel, BlockingChannel)
        if not self._blocks:
            channel.add_on_close_callback(lambda *_: thread.set(self._ended))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def run(
        self,
        queue: str,
        callback: Callable[[Any, Any, Any, bytes], object],
        method: Any,
        properties: Any,
        body: bytes,
    ) -> None:
        """Call the callback for a delivery and handle its exceptions."""
        tag: int = method.delivery_tag
        taken = self._thread.run(self._take(_convert_delivery(queue, method, properties, body)))
        if isinstance(taken, Settlement):
            self._settle(tag, taken)
            return
        self._in_hand[tag] = taken
        try:
            returned = callback(self, method, properties, body)
        except FAILURES as error:
            self._fail(tag, taken, error)
            return
        if iscoroutine(returned):
            work = asyncio.ensure_future(returned)
            work.add_done_callback(partial(self._on_returned, tag, taken))
        elif (answer := answer_of_outcome(returned)) is not None and not taken.answered:
            self._conclude(tag, answer)

    async def _take(self, delivery: Received) -> ForeignDelivery | Settlement:
        taken = self._plans.take(delivery, self._ended)
        assert taken is not None  # noqa: S101 - only queues with a plan get a callback
        return taken.copy_settlement() or taken

    def _fail(self, tag: int, taken: ForeignDelivery, error: BaseException) -> None:
        if tag in self._in_hand:
            self._conclude(tag, answer_for(error, taken.rules))
        else:
            _LOG.warning("a callback failed after it had settled its message: %r", error)

    def _on_returned(self, tag: int, taken: ForeignDelivery, work: asyncio.Task[object]) -> None:
        """Called when an async callback has finished."""
        if work.cancelled():
            return
        error = work.exception()
        if error is not None:
            self._fail(tag, taken, error)
        elif (answer := answer_of_outcome(work.result())) is not None and tag in self._in_hand:
            self._conclude(tag, answer)

    def basic_ack(self, delivery_tag: int = 0, multiple: bool = False) -> None:
        """Acknowledge one or more deliveries."""
        for tag in self._meant(delivery_tag, multiple):
            self._conclude(tag, DONE)

    def basic_nack(
        self, delivery_tag: int = 0, multiple: bool = False, requeue: bool = True
    ) -> None:
        """Retry one or more deliveries, or dead-letter them if `requeue` is False.

        The exception currently being handled is recorded as the reason.
        """
        error = sys.exception()
        for tag in self._meant(delivery_tag, multiple):
            rules = self._in_hand[tag].rules
            self._conclude(
                tag, answer_to_requeue(error, rules) if requeue else answer_to_reject(error)
            )

    def basic_reject(self, delivery_tag: int = 0, requeue: bool = True) -> None:
        """Retry a delivery, or dead-letter it if `requeue` is False."""
        self.basic_nack(delivery_tag, requeue=requeue)

    def _meant(self, tag: int, multiple: bool) -> list[int]:
        """Return the delivery tags to settle. Tag 0 with `multiple` means all of them."""
        if multiple:
            return sorted(each for each in self._in_hand if not tag or each <= tag)
        if tag not in self._in_hand:
            raise UnsafeOperation(
                f"expected the tag of an unsettled delivery, got {tag}. It is already settled, or it "
                "belongs to another consumer of this channel."
            )
        return [tag]

    def _conclude(self, tag: int, answer: Answer) -> None:
        """Apply the plan and settle the delivery in the thread of its connection."""
        moving = self._thread.submit(self._plans.conclude(self._in_hand.pop(tag), answer))
        if self._blocks:
            self._settle(tag, self._wait(moving))
        else:
            moving.add_done_callback(partial(self._on_moved, tag))

    def _wait(self, moving: Future[Settlement | None]) -> Settlement | None:
        """Wait for the result and process heartbeats. This ends when the connection is closed."""
        while True:
            try:
                return moving.result(_BETWEEN_HEARTBEATS_S)
            except TimeoutError:
                try:
                    self._own.connection.process_data_events(0)
                    if self._own.is_open:
                        continue
                except AMQPError:
                    self._thread.set(self._ended)
                    moving.result()
                    raise
                self._thread.set(self._ended)
                return moving.result()

    def _on_moved(self, tag: int, moving: Future[Settlement | None]) -> None:
        """Schedule the settlement in the thread that owns the channel."""
        how = None if moving.cancelled() else moving.result()
        loop = self._own.connection.ioloop
        later = getattr(loop, "call_soon_threadsafe", None) or loop.add_callback_threadsafe
        later(partial(self._settle, tag, how))

    def _settle(self, tag: int, how: Settlement | None) -> None:
        """Settle a delivery on its channel.

        If the channel is closed, the broker redelivers the message.
        """
        if how is None:
            return
        try:
            if how is Settlement.ACK:
                self._own.basic_ack(tag)
            else:
                self._own.basic_nack(tag, requeue=how is Settlement.RELEASE)
        except AMQPError as error:
            _LOG.warning(
                "a message could not be settled, so the broker will redeliver it: %r", error
            )


def _convert_delivery(queue: str, method: Any, properties: Any, body: bytes) -> Received:
    """Convert a pika delivery."""
    own = Properties(
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        headers=header_values(properties.headers),
        delivery_mode=properties.delivery_mode,
        priority=properties.priority,
        correlation_id=properties.correlation_id,
        reply_to=properties.reply_to,
        expiration=properties.expiration,
        message_id=properties.message_id,
        timestamp=properties.timestamp,
        type=properties.type,
        user_id=properties.user_id,
        app_id=properties.app_id,
        cluster_id=properties.cluster_id,
    )
    return Received(
        queue,
        method.exchange,
        method.routing_key,
        body,
        own,
        bool(method.redelivered),
        method.delivery_tag,
    )


def parameters_urls(parameters: Parameters | Iterable[Parameters]) -> list[str]:
    """Return one URL for each set of connection parameters."""
    several: Any = (parameters,) if hasattr(parameters, "host") else parameters
    urls = [_url(one) for one in several]
    if not urls:
        raise ValueError("expected parameters of pika, got none")
    return urls


def _url(one: Any) -> str:
    if one.ssl_options is not None:
        raise UnsafeOperation(
            'the settings of a TLS context cannot be read. Pass `publish_to="amqps://…?cacertfile=…"` '
            "with the same address and the files from which the context was created."
        )
    heartbeat = one.heartbeat if isinstance(one.heartbeat, int) else None
    options: dict[str, object] = {"heartbeat": heartbeat}
    user = password = None
    if isinstance(one.credentials, PlainCredentials):
        user, password = one.credentials.username, one.credentials.password
    elif isinstance(one.credentials, ExternalCredentials):
        options["auth_mechanism"] = "external"
    else:
        raise UnsafeOperation(
            f"expected plain or external credentials, got {type(one.credentials).__name__}. "
            'Pass `publish_to="amqp://…"`.'
        )
    return broker_url(
        one.host,
        one.port,
        user=user,
        password=password,
        virtual_host=one.virtual_host,
        options=options,
    )
