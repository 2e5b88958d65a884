"""Create the consumers of an application."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from hopback.policy.quarantine import can_suspect
from hopback.runtime.batches import Batches
from hopback.runtime.consumer import Consumer, ConsumerLimits
from hopback.runtime.context import Context, Send, context_with
from hopback.runtime.dependencies import Injector, Need, Overrides, Provider
from hopback.runtime.handler import BatchHandler, Handler, HandlerOptions
from hopback.runtime.message_types import TypedHandlers, TypedRunner
from hopback.runtime.push import PushHandler, PushRunner
from hopback.runtime.quarantine import Isolation, Quarantine
from hopback.runtime.settling import Environment, Settling
from hopback.runtime.slow_runs import SlowRuns
from hopback.runtime.worker import FunctionRunner, OneByOne, Work, inside_middleware
from hopback.topology.delays import longest_delay_ms
from hopback.topology.effective import effective_arguments
from hopback.topology.expand import dead_letters_park

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hopback.fields import Headers
    from hopback.runtime.answer import Answer, Run
    from hopback.runtime.app import AnyHandler
    from hopback.runtime.codecs import Codecs
    from hopback.runtime.failures import FailedRuns
    from hopback.runtime.middleware import Middleware
    from hopback.runtime.requests import RequestClient
    from hopback.topology.model import Topology
    from hopback.topology.plan import Plan


_OneByOneHandler: TypeAlias = "Handler | PushHandler | TypedHandlers"


@dataclass(slots=True)
class Assembly:
    topology: Topology
    publish: Send
    environment: Environment
    concurrency: int | None = None
    """Overrides the concurrency of all handlers."""
    middleware: Callable[[str], Sequence[Middleware]] = lambda _queue: ()
    """Returns the middleware for a queue."""
    overrides: Overrides = field(default_factory=dict)
    failed: FailedRuns | None = None
    codecs: Codecs | None = None
    reply_queues: Sequence[str] = ()
    """Queues that replies may be sent to, in addition to direct reply-to."""
    isolation: Isolation = field(default_factory=Isolation)
    requests: RequestClient | None = None
    _injectors: list[Injector] = field(default_factory=list)
    _runners: list[FunctionRunner | PushRunner] = field(default_factory=list)
    _works: list[Work] = field(default_factory=list)

    def consumer(self, handler: AnyHandler) -> Consumer:
        plan = self.topology.plan(handler.queue)
        assert plan is not None  # noqa: S101 - App.topology refuses handlers without a plan
        if isinstance(handler, BatchHandler):
            return self._batch_consumer(handler, plan)
        return self._single_consumer(handler, plan)

    @asynccontextmanager
    async def open_dependencies(
        self,
        lifespan: Callable[..., AbstractAsyncContextManager[object]],
        needs: Sequence[Need] = (),
    ) -> AsyncIterator[None]:
        """Enter the lifespan and create the dependencies with the scope `application`."""
        made: dict[Provider, Any] = {}
        own = Injector(needs, where="lifespan", overrides=self.overrides, has_context=False)
        async with AsyncExitStack() as stack:
            await own.start(made, stack)
            values = (await own.open(None)).values
            await stack.enter_async_context(lifespan(**values))
            for injector in self._injectors:
                await injector.start(made, stack)
            # Other work is paused while a suspected message is handled.
            for work in self._works:
                self.isolation.join(work)
            yield

    async def close(self) -> None:
        """Close all runners, including their connections and threads."""
        for work in self._works:
            self.isolation.leave(work)
        for runner in self._runners:
            await runner.close()

    def _single_consumer(self, handler: _OneByOneHandler, plan: Plan) -> Consumer:
        options = handler.options
        if self.concurrency is not None:
            options = replace(options, concurrency=self.concurrency)
        # Limit held deliveries to half of the slots, so that other messages can still be handled.
        settling = self._create_settling(plan, most_holds=options.concurrency // 2)
        runner = self._runner(handler, options, plan)
        run: Run = runner
        if isinstance(runner, PushRunner) and (around := self.middleware(handler.queue)):
            run = inside_middleware(around, run, plan, self.publish, self._make_context())
        if self.environment.wrap_run is not None:
            run = self.environment.wrap_run(run, plan)
        settled = None
        if not isinstance(runner, PushRunner) and runner.waits_for_settlement:
            settled = runner.close_delivery_scope
        work = partial(OneByOne, handler.queue, options, run, settling, settled)
        limits = ConsumerLimits(options.window, options.concurrency, options.breaker)
        deadlines = [options.deadline or 0.0]
        if isinstance(handler, TypedHandlers):
            deadlines += [one.options.deadline or 0.0 for one in handler.handlers.values()]
        return self._build(plan, limits, work, max(deadlines))

    def _batch_consumer(self, handler: BatchHandler, plan: Plan) -> Consumer:
        options = handler.options
        # The middleware already wraps the whole batch, so `prepare` is called without it.
        prepare = None if handler.prepare is None else self._function(handler.prepare, plan, ())
        injector = self._injector(handler.needs, f"batch handler of queue {handler.queue!r}", False)
        read = None
        if self.codecs is not None and handler.wanted is not None:
            read = self.codecs.reader(handler.wanted, handler.decode)
        work = partial(
            Batches,
            handler,
            prepare,
            self._create_settling(plan),
            self.environment,
            injector,
            read,
            self.middleware(handler.queue),
            partial(self._make_context(), plan=plan, publish=self.publish),
        )
        limits = ConsumerLimits(options.window, options.batchers, options.breaker)
        return self._build(plan, limits, work, options.deadline)

    def _build(
        self,
        plan: Plan,
        limits: ConsumerLimits,
        work: Callable[[Callable[[Answer], object]], Work],
        deadline: float | None,
    ) -> Consumer:
        queue = next((one for one in self.topology.queues if one.name == plan.queue), None)
        arguments: Headers = {}
        if queue is not None:
            arguments = effective_arguments(queue, self.topology.policies)
        timeout_ms = arguments.get("x-consumer-timeout")
        quarantine = None
        if can_suspect(plan):
            limit = arguments.get("x-delivery-limit")
            quarantine = Quarantine(plan, self.isolation, self.environment, limit)

        def make(observe: Callable[[Answer], object]) -> Work:
            made = work(observe)
            self._works.append(made)
            return made

        def watch(work: Work) -> SlowRuns:
            timeout = timeout_ms / 1000 if isinstance(timeout_ms, int) else None
            return SlowRuns(plan, work, self.environment, deadline=deadline, timeout=timeout)

        single_active = arguments.get("x-single-active-consumer") is True
        return Consumer(
            plan.queue,
            limits,
            make,
            self.environment,
            quarantine,
            watch,
            single_active=single_active,
        )

    def _create_settling(self, plan: Plan, *, most_holds: int = 0) -> Settling:
        return Settling(
            plan,
            self.publish,
            self.environment,
            dead_letters_park=dead_letters_park(self.topology, plan),
            longest_delay_ms=longest_delay_ms(self.topology),
            most_holds=most_holds,
            failed=self.failed,
        )

    def _runner(
        self, handler: _OneByOneHandler, options: HandlerOptions, plan: Plan
    ) -> FunctionRunner | PushRunner | TypedRunner:
        around = self.middleware(handler.queue)
        if isinstance(handler, TypedHandlers):
            each = {
                name: self._function(
                    replace(one, options=replace(one.options, concurrency=options.concurrency)),
                    plan,
                    around,
                )
                for name, one in handler.handlers.items()
            }
            return TypedRunner(handler, each)
        if not isinstance(handler, PushHandler):
            return self._function(replace(handler, options=options), plan, around)
        target = replace(handler.target, connections=options.concurrency)
        runner = PushRunner(target, plan, self.environment.clock)
        self._runners.append(runner)
        return runner

    def _function(
        self, handler: Handler, plan: Plan, middleware: Sequence[Middleware]
    ) -> FunctionRunner:
        runner = FunctionRunner(
            handler,
            plan,
            self.publish,
            self.environment.bus,
            injector=self._injector(handler.needs, f"handler of queue {handler.queue!r}", True),
            middleware=middleware,
            codecs=self.codecs,
            make_context=self._make_context(),
        )
        self._runners.append(runner)
        return runner

    def _make_context(self) -> type[Context]:
        return context_with(self.codecs, self.reply_queues, self.environment.clock, self.requests)

    def _injector(self, needs: Sequence[Need], where: str, has_context: bool) -> Injector | None:
        if not needs:
            return None
        made = Injector(needs, where=where, overrides=self.overrides, has_context=has_context)
        self._injectors.append(made)
        return made
