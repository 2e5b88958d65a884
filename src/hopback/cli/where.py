"""Where the dead letters are: the options that say it, and how a command gets there."""

from __future__ import annotations

import asyncio
import io
import re
import shlex
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stderr
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from hopback.cli.database import journal, state_folder
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import EMBEDDED, Access, TopologySource, rabbitmq, reach_management

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from click.shell_completion import CompletionItem

    from hopback.broker.port import Broker, Connection
    from hopback.cli.desk import Desk
    from hopback.clock import Clock
    from hopback.deadletters.discovery import Override
    from hopback.deadletters.operations import Operations
    from hopback.deadletters.places import LiveView
    from hopback.deadletters.requests import Who
    from hopback.topology.model import Topology

__all__ = [
    "Library",
    "Place",
    "at_desk",
    "complete_job",
    "complete_queue",
    "desk_options",
    "library_options",
    "open_desk",
    "open_library",
    "quick_loop",
    "resume_command",
]

_Command = TypeVar("_Command", bound="Callable[..., object]")
_T = TypeVar("_T")
_PASSWORD = re.compile(r"(//[^/@:]*):[^/]*@")


@dataclass(frozen=True, slots=True)
class Place:
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

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Place:
        """Take what belongs here out of a command's options."""
        own = {name: options.pop(name) for name in cls.__slots__ if name in options}
        return cls(**own)


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
        metavar="(SYSTEM | FILE)",
        help="A design or file whose plans hold for the queues; repeatable.",
    ),
    click.option("--hardened", is_flag=True, help="The hardened form of the design."),
    click.option(
        "--dlq",
        "named",
        multiple=True,
        metavar="QUEUE[=ORIGIN]",
        help="Another dead-letter queue, and the queue its messages failed in; repeatable.",
    ),
)
_STORE = click.option(
    "--store",
    envvar="HOPBACK_STORE",
    metavar="URL",
    help="Where jobs and audit are kept: sqlite:///file.db, postgresql://…, or `memory`;"
    " by default a file of the user's own.",
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


def desk_options(command: _Command) -> _Command:
    """Give a command everything that says where the dead letters are."""
    for option in reversed((*_BROKER, _STORE, *_SERVER)):
        command = option(command)
    return command


def library_options(command: _Command) -> _Command:
    """The same without a server: for what is one."""
    for option in reversed((*_BROKER, _STORE)):
        command = option(command)
    return command


def at_desk(place: Place, work: Callable[[Desk], Awaitable[_T]]) -> _T:
    """Do the work at the desk, on an event loop of its own."""

    async def working() -> _T:
        async with open_desk(place) as desk:
            return await work(desk)

    with asyncio.Runner(loop_factory=quick_loop()) as runner:
        return runner.run(working())


def resume_command(ident: str) -> str:
    """The command that goes on with a job, with the options that were said; never a password."""
    ctx = click.get_current_context()
    said = [
        word
        for param in ctx.command.params
        if param.name in Place.__slots__
        and param.name != "token"
        and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        for word in _said(param.opts[0], ctx.params[param.name])
    ]
    return shlex.join(["hopback", "jobs", "resume", ident, *said])


def _said(option: str, value: object) -> list[str]:
    match value:
        case True:
            return [option]
        case tuple():
            return [word for each in value for word in (option, str(each))]
    return [option, _PASSWORD.sub(r"\1:…@", str(value))]


def quick_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The quicker event loop of the extra `speed` where that is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


@asynccontextmanager
async def open_desk(place: Place) -> AsyncIterator[Desk]:
    """The server's desk if one is named, else the library's."""
    async with AsyncExitStack() as stack:
        if place.server is not None:
            from hopback.cli.server_desk import ServerDesk

            yield await stack.enter_async_context(ServerDesk(place.server, place.token))
        else:
            yield await _library(place, stack)


@dataclass(frozen=True, slots=True)
class Library:
    """The operations on a broker, and what they were made with."""

    operations: Operations
    broker: Broker
    management: LiveView | None
    vhost: str
    topologies: tuple[Topology, ...]
    clock: Clock


async def _library(place: Place, stack: AsyncExitStack) -> Desk:
    from hopback.cli.desk import LibraryDesk

    found = await open_library(place, stack)
    everywhere = place.broker is None
    return LibraryDesk(found.operations, _user(), found.clock, everywhere=everywhere)


async def open_library(place: Place, stack: AsyncExitStack, *, editing: bool = False) -> Library:
    """The operations on the broker that was named; `editing` lets them send changed copies."""
    from hopback.clock import SystemClock
    from hopback.deadletters.operations import Operations
    from hopback.deadletters.settings import Settings
    from hopback.designs import DESIGNS

    clock = SystemClock()
    broker, vhost = _broker(place.broker)
    management = await _management(place, broker, stack)
    # --hardened is for the designs among them; a file says itself what it declares.
    topologies = tuple(
        TopologySource(name, place.hardened and name in DESIGNS).topology()
        for name in place.topologies
    )
    operations = Operations(
        broker,
        management=management,
        vhost=vhost,
        topologies=topologies,
        overrides=tuple(_override(text) for text in place.named),
        journal=await stack.enter_async_context(journal(place.store, clock)),
        settings=Settings(exports=state_folder() / "exports", editing=editing),
        clock=clock,
    )
    await stack.enter_async_context(operations)
    return Library(operations, broker, management, vhost, topologies, clock)


async def _management(place: Place, broker: Broker, stack: AsyncExitStack) -> LiveView | None:
    if place.broker is None:
        return None
    if place.broker == EMBEDDED:
        from hopback.broker.embedded import EmbeddedBroker
        from hopback.broker.embedded.management import EmbeddedManagement

        return EmbeddedManagement(broker) if isinstance(broker, EmbeddedBroker) else None
    access = Access(place.broker, place.management, place.amqp_only)
    return await reach_management(access, stack)


def _broker(url: str | None) -> tuple[Broker, str]:
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


_COMPLETION_S = 3.0  # a shell that hangs at the tab key is worse than one that knows no names


def complete_queue(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Dead-letter queues of the broker that the command line, or the environment, names."""

    async def names(desk: Desk) -> list[tuple[str, str]]:
        return [(one["queue"], f"{one['messages']} messages") for one in await desk.queues()]

    return _items(ctx, incomplete, names)


def complete_job(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Jobs of the store, the newest first."""

    async def names(desk: Desk) -> list[tuple[str, str]]:
        found = await desk.jobs("", False, 100)
        return [(one["id"], f"{one['kind']} {one['queue']} {one['state']}") for one in found]

    return _items(ctx, incomplete, names)


def _items(
    ctx: click.Context,
    incomplete: str,
    ask: Callable[[Desk], Awaitable[list[tuple[str, str]]]],
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    options = {name: value for name, value in ctx.params.items() if name in Place.__slots__}
    place = Place(**{name: value for name, value in options.items() if value is not None})

    async def asking() -> list[tuple[str, str]]:
        async with asyncio.timeout(_COMPLETION_S), open_desk(place) as desk:
            return await ask(desk)

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
