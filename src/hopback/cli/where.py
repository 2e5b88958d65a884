"""Where the dead letters are: the options that say it, and how a command gets there."""

from __future__ import annotations

import asyncio
import io
import re
import shlex
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stderr
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from hopback.cli.database import journal, state_folder
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import EMBEDDED, Access, TopologySource, rabbitmq, reach_management

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from click.shell_completion import CompletionItem

    from hopback.broker.port import Broker, Connection
    from hopback.clock import Clock
    from hopback.deadletters.discovery import Override
    from hopback.deadletters.interface import DeadLetters
    from hopback.deadletters.live import LiveView
    from hopback.deadletters.requests import Who
    from hopback.deadletters.service import Operations
    from hopback.topology.model import Topology

__all__ = [
    "InProcess",
    "Where",
    "broker_where_options",
    "complete_job",
    "complete_queue",
    "open_dead_letters",
    "open_in_process",
    "quick_loop",
    "resume_command",
    "where_options",
    "with_dead_letters",
]

_Command = TypeVar("_Command", bound="Callable[..., object]")
_T = TypeVar("_T")
_PASSWORD = re.compile(r"(//[^/@:]*):[^/]*@")


@dataclass(frozen=True, slots=True)
class Where:
    """What the user said of where the dead letters are."""

    broker: str | None = None
    management: str | None = None
    amqp_only: bool = False
    topologies: tuple[str, ...] = ()
    hardened: bool = False
    named: tuple[str, ...] = ()
    store: str | None = None
    server: str | None = None
    token: str | None = None


_BROKER = (
    click.option(
        "--broker",
        envvar="HOPBACK_BROKER",
        metavar="URL",
        help="amqp(s):// address; also HOPBACK_BROKER, which keeps it out of process lists.",
    ),
    click.option(
        "--management",
        envvar="HOPBACK_MANAGEMENT",
        metavar="URL",
        help="http(s):// address of the management API; by default the broker's host.",
    ),
    click.option(
        "--amqp-only", is_flag=True, help="Do without the management API: declare what there is."
    ),
    click.option(
        "--topology",
        "topologies",
        multiple=True,
        metavar="(SYSTEM | FILE | MODULE:APP)",
        help="A design, file or application whose plans hold for the queues; repeatable.",
    ),
    click.option("--hardened", is_flag=True, help="The hardened form of the design."),
    click.option(
        "--dlq",
        "named",
        multiple=True,
        metavar="QUEUE[=ORIGIN]",
        help="Another dead-letter queue, and the queue its messages failed in; repeatable.",
    ),
    click.option(
        "--store",
        envvar="HOPBACK_STORE",
        metavar="URL",
        help="Where jobs and audit are kept: sqlite:///file.db, postgresql://…, or `memory`;"
        " by default a file of the user's own.",
    ),
)
_SERVER = (
    click.option(
        "--server",
        envvar="HOPBACK_SERVER",
        metavar="URL",
        help="http(s):// address of `hopback serve`; instead of --broker.",
    ),
    click.option(
        "--token",
        envvar="HOPBACK_TOKEN",
        metavar="TOKEN",
        help="Bearer token or API key for the server; better by HOPBACK_TOKEN.",
    ),
)


def where_options(command: _Command) -> _Command:
    """Give a command everything that says where the dead letters are, as `where`."""
    return _with_where(command, *_BROKER, *_SERVER)


def broker_where_options(command: _Command) -> _Command:
    """The same without a server: for what is one."""
    return _with_where(command, *_BROKER)


def _with_where(command: _Command, *options: Callable[[_Command], _Command]) -> _Command:
    @wraps(command)
    def called(**said: Any) -> object:
        own = {name: said.pop(name) for name in Where.__slots__ if name in said}
        return command(where=Where(**own), **said)

    found = cast("_Command", called)
    for option in reversed(options):
        found = option(found)
    return found


# --- getting there


def with_dead_letters(where: Where, work: Callable[[DeadLetters], Awaitable[_T]]) -> _T:
    """Do the work on the dead letters, on an event loop of its own."""

    async def working() -> _T:
        async with open_dead_letters(where) as dead_letters:
            return await work(dead_letters)

    with asyncio.Runner(loop_factory=quick_loop()) as runner:
        return runner.run(working())


def quick_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The quicker event loop of the extra `speed` where that is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


@asynccontextmanager
async def open_dead_letters(where: Where) -> AsyncIterator[DeadLetters]:
    """Those of the server if one is named, else those of the broker, in this process."""
    async with AsyncExitStack() as stack:
        if where.server is not None:
            from hopback.deadletters.remote import RemoteDeadLetters

            remote = RemoteDeadLetters(where.server, where.token)
            yield await stack.enter_async_context(remote)
        else:
            # Who may use the broker may also publish to it: editing is theirs, after a question.
            found = await open_in_process(where, stack, editing=True)
            # Without a broker only the store can be asked, and that for the jobs of all brokers.
            yield found.operations.acting_as(_user(), everywhere=where.broker is None)


@dataclass(frozen=True, slots=True)
class InProcess:
    """The operations on a broker, and what they were made with."""

    operations: Operations
    broker: Broker
    management: LiveView | None
    vhost: str
    topologies: tuple[Topology, ...]
    clock: Clock


async def open_in_process(
    where: Where, stack: AsyncExitStack, *, editing: bool = False
) -> InProcess:
    """The operations on the broker that was named, until the stack is closed."""
    from hopback.clock import SystemClock
    from hopback.deadletters.requests import Settings
    from hopback.deadletters.service import Operations
    from hopback.designs import DESIGNS

    clock = SystemClock()
    broker, vhost = _broker(where.broker)
    management = await _management(where, broker, stack)
    # --hardened is for the designs among them; a file says itself what it declares.
    topologies = tuple(
        TopologySource(name, where.hardened and name in DESIGNS).topology()
        for name in where.topologies
    )
    operations = Operations(
        broker,
        management=management,
        vhost=vhost,
        topologies=topologies,
        overrides=tuple(map(_override, where.named)),
        journal=await stack.enter_async_context(journal(where.store, clock)),
        settings=Settings(exports=state_folder() / "exports", editing=editing),
        clock=clock,
    )
    await stack.enter_async_context(operations)
    return InProcess(operations, broker, management, vhost, topologies, clock)


async def _management(where: Where, broker: Broker, stack: AsyncExitStack) -> LiveView | None:
    if where.broker is None:
        return None
    if where.broker == EMBEDDED:
        from hopback.broker.embedded import EmbeddedBroker
        from hopback.broker.embedded.management import EmbeddedManagement

        return EmbeddedManagement(broker) if isinstance(broker, EmbeddedBroker) else None
    access = Access(where.broker, where.management, where.amqp_only)
    return await reach_management(access, stack)


def _broker(url: str | None) -> tuple[Broker, str]:
    """The broker and its virtual host."""
    from hopback.broker.management import virtual_host

    if url is None:
        return _NoBroker(), "/"
    if url == EMBEDDED:
        from hopback.broker.embedded import EmbeddedBroker

        return EmbeddedBroker(), "/"
    return rabbitmq(url), virtual_host(url)


class _NoBroker:
    """Stands where none was named: what is in the store can be told without one."""

    @property
    def address(self) -> str:
        """Nowhere."""
        return ""

    async def connect(self, name: str = "hopback") -> Connection:
        """Say what is missing."""
        raise CommandFailed(
            "no broker was named",
            do="Say --broker URL or set HOPBACK_BROKER; --server URL asks a server instead.",
            code=Exit.USAGE,
        )


def _override(text: str) -> Override:
    from hopback.deadletters.discovery import Override

    queue, separator, origin = text.partition("=")
    if not queue or (separator and not origin):
        raise click.BadParameter(
            f"expected QUEUE or QUEUE=ORIGIN, got {text!r}.", param_hint="--dlq"
        )
    return Override(queue, main_queue=origin or None)


def _user() -> Who:
    """Who runs the command, for jobs and audit."""
    import getpass
    import socket

    from hopback.deadletters.requests import Who

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"
    return Who(f"{name}@{socket.gethostname()}", name)


# --- saying it again


def resume_command(job: str) -> str:
    """The command that goes on with a job, with the options that were said; never a password."""
    ctx = click.get_current_context()
    said = [
        word
        for param in ctx.command.params
        if param.name in Where.__slots__
        and param.name != "token"
        and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        for word in _said(param.opts[0], ctx.params[param.name])
    ]
    return shlex.join(["hopback", "jobs", "resume", job, *said])


def _said(option: str, value: object) -> list[str]:
    match value:
        case True:
            return [option]
        case tuple():
            return [word for each in value for word in (option, str(each))]
    return [option, _PASSWORD.sub(r"\1:…@", str(value))]


# --- names for the shell's tab key: silent and quick, whatever happens

_COMPLETION_S = 3.0  # a shell that hangs at the tab key is worse than one that knows no names
_COMPLETED_JOBS = 100  # more names than anybody reads


def complete_queue(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Dead-letter queues of the broker that the command line, or the environment, names."""

    async def names(dead_letters: DeadLetters) -> list[tuple[str, str]]:
        return [(one.queue, f"{one.messages} messages") for one in await dead_letters.queues()]

    return _completions(ctx, incomplete, names)


def complete_job(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Jobs of the store, the newest first."""

    async def names(dead_letters: DeadLetters) -> list[tuple[str, str]]:
        found = await dead_letters.jobs(limit=_COMPLETED_JOBS)
        return [(one.id, f"{one.kind} {one.queue} {one.state}") for one in found]

    return _completions(ctx, incomplete, names)


def _completions(
    ctx: click.Context,
    incomplete: str,
    ask: Callable[[DeadLetters], Awaitable[list[tuple[str, str]]]],
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    said = {
        name: value
        for name, value in ctx.params.items()
        if name in Where.__slots__ and value is not None
    }

    async def asking() -> list[tuple[str, str]]:
        async with (
            asyncio.timeout(_COMPLETION_S),
            open_dead_letters(Where(**said)) as dead_letters,
        ):
            return await ask(dead_letters)

    try:
        with redirect_stderr(io.StringIO()):
            found = asyncio.run(asking())
    except Exception:
        return []  # the tab key gives names or nothing, never an error
    return [
        CompletionItem(name, help=text)
        for name, text in found
        if name.startswith(incomplete) and name.isprintable()
    ]
