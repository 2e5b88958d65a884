"""Send messages with an action, and ack each of them after its action has succeeded.

The broker confirms messages later and in any order. Up to `in_flight` messages are unconfirmed at a
time. A message that fails is not acked. It is sent again alone when no others are in flight.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from hopback.errors import BrokerError, HopbackError
from hopback.ops.contract.values import JobState
from hopback.ops.jobs.actions import LeftOut
from hopback.ops.jobs.control import EndJob
from hopback.ops.jobs.publish_failure import AfterFailure, after_failure

if TYPE_CHECKING:
    from hopback.ops.contract.requests import Pace
    from hopback.ops.jobs.actions import Action, Prepared
    from hopback.ops.jobs.batch_reader import SelectedMessage
    from hopback.ops.jobs.control import Control
    from hopback.ops.jobs.cursor_driver import CursorDriver

_BUSY = 4
"""The broker is considered busy if at least a quarter of the allowed messages are in flight."""
_NEW_CHANNEL_AFTER = 3
"""Attempts on the same channel. If it keeps failing, the channel itself may be the cause (RabbitMQ
≤ 3.12.0).
"""


class Sender:
    """Send messages, and keep track of those in flight and those that have failed."""

    def __init__(self, action: Action, driver: CursorDriver, pace: Pace, sent: int) -> None:
        """`sent` is the number of messages from earlier runs that count towards the ramp."""
        self._action = action
        self._driver = driver
        self._pace = pace
        self._in_flight: set[int] = set()
        self._landed = asyncio.Event()
        self.sent: int = sent
        self.failed: list[SelectedMessage] = []
        self.lost: BrokerError | None = None
        """Why a message could not be acked."""
        self.holds_acks: bool = False
        """Whether acks are delayed until `ack_held` is called, because a checkpoint has to be saved
        first.
        """
        self._held: list[SelectedMessage] = []

    @property
    def is_full(self) -> bool:
        """Whether no more messages can be in flight."""
        return len(self._in_flight) >= self._pace.in_flight

    @property
    def is_busy(self) -> bool:
        """Whether the broker has enough work while the next messages are collected."""
        return len(self._in_flight) * _BUSY >= self._pace.in_flight

    @property
    def is_troubled(self) -> bool:
        """Whether a message has failed or could not be acked."""
        return bool(self.failed) or self.lost is not None

    def check(self) -> None:
        """Raise the error if an ack could not be sent."""
        if self.lost is not None:
            raise self.lost

    def send(self, message: SelectedMessage, prepared: Prepared) -> None:
        """Start the action on a message. The message is acked when it has succeeded."""
        self.sent += 1
        try:
            fate = self._action.send(prepared)
        except HopbackError:
            self.failed.append(message)
        else:
            self._in_flight.add(message.delivery.tag)
            fate.add_done_callback(partial(self._land, message))

    def _land(self, message: SelectedMessage, fate: asyncio.Future[None]) -> None:
        self._in_flight.discard(message.delivery.tag)
        self._landed.set()
        if fate.cancelled() or fate.exception() is not None:
            self.failed.append(message)
        else:
            self._ack(message)

    @property
    def has_held_acks(self) -> bool:
        return bool(self._held)

    def ack_held(self) -> None:
        """Ack the messages that were sent after `holds_acks` was set."""
        self.holds_acks = False
        held, self._held = self._held, []
        for message in held:
            self._ack(message)
        self.check()

    def _ack(self, message: SelectedMessage) -> None:
        if self.holds_acks:
            self._held.append(message)
            return
        try:
            self._driver.ack(message.delivery.tag)
        except BrokerError as lost:
            self.lost = self.lost or lost

    async def wait_for_room(self) -> None:
        """Wait until another message can be in flight and the channel has room."""
        while self.is_full:
            await self._wait_for_landing()
        # If the channel was closed, sending fails and the retry determines the reason.
        with suppress(BrokerError):
            await self._action.room()

    async def drain(self) -> None:
        """Wait until no messages are in flight."""
        while self._in_flight:
            await self._wait_for_landing()

    async def _wait_for_landing(self) -> None:
        self._landed.clear()
        await self._action.flush()
        if self._in_flight and not self._landed.is_set():
            await self._landed.wait()

    async def retry(self, message: SelectedMessage, control: Control) -> str:
        """Retry a failed message. Returns an empty string, or the reason why the message cannot be
        sent.

        Raises EndJob if other messages would fail too.
        """
        last: HopbackError | None = None
        for attempt in range(1, self._pace.tries + 1):
            control.check()
            try:
                await self._action.room()
                prepared = await self._action.prepare(message.delivery)
                if isinstance(prepared, LeftOut):
                    return prepared.reason
                fate = self._action.send(prepared)
                await self._action.flush()
                await fate
            except HopbackError as failed:
                last = failed
            else:
                self._ack(message)
                self.check()
                return ""
            ended = await self._action.reopen(anew=attempt >= _NEW_CHANNEL_AFTER)
            match after_failure(last, ended):
                case AfterFailure.LEAVE:
                    return str(ended or last)
                case AfterFailure.STOP:
                    raise EndJob(JobState.FAILED, str(ended or last))
            if attempt < self._pace.tries:
                await control.sleep(self._pace.pause(attempt))
            self.check()
        raise EndJob(JobState.FAILED, f"gave up after {self._pace.tries} attempts: {last}")
