"""Puts a queue's consumer together: its handler, its plan, what runs it and what settles."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from hopback.policy.quarantine import can_suspect
from hopback.runtime.batch import BatchHandler
from hopback.runtime.batches import Batches
from hopback.runtime.consumer import Consumer, ConsumerLimits
from hopback.runtime.push import PushHandler, PushRunner
from hopback.runtime.quarantine import Quarantine, Solitude
from hopback.runtime.running import FunctionRunner
from hopback.runtime.settling import Settling
from hopback.runtime.work import OneByOne, Work
from hopback.topology.expand import dead_letters_park

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.message import Message
    from hopback.runtime.answer import Answer
    from hopback.runtime.app import AnyHandler
    from hopback.runtime.handler import Handler, HandlerOptions
    from hopback.runtime.settling import Environment
    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan

__all__ = ["Assembly"]


@dataclass(slots=True)
class Assembly:
    """Makes consumers that share a topology and a way to publish, and closes what runs them."""

    topology: Topology
    publish: Callable[[Message], Awaitable[None]]
    world: Environment
    concurrency: int | None = None
    """Overrides how many handlers of each queue run at once."""
    _runners: list[FunctionRunner | PushRunner] = field(default_factory=list)
    _solitude: Solitude = field(default_factory=Solitude)

    def consumer(self, handler: AnyHandler) -> Consumer:
        """The consumer of the handler's queue."""
        plan = self.topology.plan(handler.queue)
        assert plan is not None  # noqa: S101 - App.topology refuses handlers without a plan
        if isinstance(handler, BatchHandler):
            return self._in_batches(handler, plan)
        return self._one_by_one(handler, plan)

    async def close(self) -> None:
        """Close connections and let threads go."""
        for runner in self._runners:
            await runner.close()

    def _one_by_one(self, handler: Handler | PushHandler, plan: Plan) -> Consumer:
        options = handler.options
        if self.concurrency is not None:
            options = replace(options, concurrency=self.concurrency)
        # Half of what can be handled at once may wait in our hands: the rest goes on.
        settling = self._settling(plan, most_holds=options.concurrency // 2)
        runner = self._runner(handler, options, plan)
        run = runner if self.world.around is None else self.world.around(runner, plan)
        work = partial(OneByOne, handler.queue, options, run, settling)
        limits = ConsumerLimits(options.window, options.concurrency, options.breaker)
        return self._consuming(plan, limits, work)

    def _in_batches(self, handler: BatchHandler, plan: Plan) -> Consumer:
        options = handler.options
        prepare = None if handler.prepare is None else self._function(handler.prepare, plan)
        work = partial(Batches, handler, prepare, self._settling(plan), self.world)
        limits = ConsumerLimits(options.window, options.batchers, options.breaker)
        return self._consuming(plan, limits, work)

    def _consuming(
        self, plan: Plan, limits: ConsumerLimits, work: Callable[[Callable[[Answer], object]], Work]
    ) -> Consumer:
        quarantine = None
        if can_suspect(plan):
            quarantine = Quarantine(plan, self._solitude, self.world)
        return Consumer(plan.queue, limits, self._joined(work), self.world, quarantine)

    def _joined(
        self, work: Callable[[Callable[[Answer], object]], Work]
    ) -> Callable[[Callable[[Answer], object]], Work]:
        """What it makes is held while a suspected message of any queue runs alone."""

        def make(observe: Callable[[Answer], object]) -> Work:
            made = work(observe)
            self._solitude.join(made)
            return made

        return make

    def _settling(self, plan: Plan, *, most_holds: int = 0) -> Settling:
        return Settling(
            plan,
            self.publish,
            self.world,
            dead_letters_park=dead_letters_park(self.topology, plan),
            most_holds=most_holds,
        )

    def _runner(
        self, handler: Handler | PushHandler, options: HandlerOptions, plan: Plan
    ) -> FunctionRunner | PushRunner:
        if not isinstance(handler, PushHandler):
            return self._function(replace(handler, options=options), plan)
        target = replace(handler.target, connections=options.concurrency)
        runner = PushRunner(target, plan, self.world.clock)
        self._runners.append(runner)
        return runner

    def _function(self, handler: Handler, plan: Plan) -> FunctionRunner:
        runner = FunctionRunner(handler, plan, self.publish, self.world.bus)
        self._runners.append(runner)
        return runner
