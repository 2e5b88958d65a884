"""The connection options of commands, and how they are used to open a broker or a server."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shlex
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stderr
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from hopback.cli.broker_options import (
    EMBEDDED,
    Access,
    amqp_only_option,
    broker_option,
    config_option,
    find_named_broker,
    is_broker_name,
    management_option,
    rabbitmq,
    reach_management,
)
from hopback.cli.event_loop import quick_loop
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import did_you_mean, group_options
from hopback.cli.topology_options import TopologySource
from hopback.clock import Clock, SystemClock
from hopback.endpoint import is_loopback
from hopback.errors import HopbackError, NoSuch
from hopback.extras import needs
from hopback.ops.cli.journal import journal, state_folder
from hopback.text import count_of
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from pathlib import Path

    from click.shell_completion import CompletionItem

    from hopback.broker.named_brokers import BrokerSettings
    from hopback.broker.port import Broker, Connection
    from hopback.ops.brokers.discovery import Override
    from hopback.ops.brokers.managed_broker import ManagedBroker, ManagementApi
    from hopback.ops.contract.interface import DeadLetters
    from hopback.ops.contract.requests import Settings, Who
    from hopback.ops.operations import Operations

_Command = TypeVar("_Command", bound="Callable[..., object]")
_T = TypeVar("_T")
_PASSWORD = re.compile(r"(//[^/@:]*):[^/]*@")


@dataclass(frozen=True, slots=True)
class OpsAccess:
    """The connection options of commands that operate on dead letters."""

    broker: str | None = None
    management: str | None = None
    amqp_only: bool = False
    topologies: tuple[str, ...] = ()
    hardened: bool = False
    dlq: tuple[str, ...] = ()
    store: str | None = None
    server: str | None = None
    token: str | None = None
    config: Path | None = None

    @property
    def is_named(self) -> bool:
        """Whether the broker is given by its name in a settings file or on a server."""
        return is_broker_name(self.broker)


_BROKER = (
    management_option,
    amqp_only_option,
    click.option(
        "--topology",
        "topologies",
        multiple=True,
        metavar="(SYSTEM | FILE | MODULE:APP)",
        help="Design, file or application with the plans of the queues. Repeatable.",
    ),
    click.option("--hardened", is_flag=True, help="Use the hardened form of the design."),
    click.option(
        "--dlq",
        "dlq",
        multiple=True,
        metavar="QUEUE[=ORIGIN]",
        help="Additional dead-letter queue, and the queue in which its messages failed."
        " Repeatable.",
    ),
    click.option(
        "--store",
        envvar="HOPBACK_STORE",
        metavar="URL",
        help="Database of jobs and audit: sqlite:///file.db, postgresql://…, or `memory`."
        " Default: a file in the user's state folder.",
    ),
)
_SERVER = (
    click.option(
        "--server",
        envvar="HOPBACK_SERVER",
        metavar="URL",
        help="http(s):// address of `hopback serve`, instead of a broker.",
    ),
    click.option(
        "--token",
        envvar="HOPBACK_TOKEN",
        metavar="TOKEN",
        help="Bearer token or API key for the server. HOPBACK_TOKEN keeps it out of process lists.",
    ),
)


access_options = group_options(
    "access",
    OpsAccess,
    broker_option(name_in="in --config or on --server", required=False),
    *_BROKER,
    config_option,
    *_SERVER,
)
"""Add all connection options to a command, which receives them as `access`."""
broker_access_options = group_options(
    "access", OpsAccess, broker_option(name_in="", required=False), *_BROKER
)
"""Add the connection options except --server and --config. `hopback serve` uses this."""


def dead_letter_command(command: Callable[..., Awaitable[object]]) -> Callable[..., object]:
    """Add all connection options to a coroutine function. It receives the opened dead letters first."""

    @wraps(command)
    def invoke(access: OpsAccess, **values: Any) -> object:
        return with_dead_letters(access, lambda dead_letters: command(dead_letters, **values))

    return access_options(invoke)


def with_dead_letters(access: OpsAccess, work: Callable[[DeadLetters], Awaitable[_T]]) -> _T:
    """Run a coroutine function with the opened dead letters on a new event loop."""

    async def run_work() -> _T:
        async with open_dead_letters(access) as dead_letters:
            try:
                return await work(dead_letters)
            except NoSuch as missing:
                raise await _with_close_name(dead_letters, missing) from missing

    with asyncio.Runner(loop_factory=quick_loop()) as runner:
        return runner.run(run_work())


async def _with_close_name(dead_letters: DeadLetters, missing: NoSuch) -> HopbackError:
    """Return the error with a hint that suggests a queue with a similar name."""
    if "queue" not in missing.kind and "queue" not in str(missing):
        return missing
    # An error from a server only has a message, where the name is in quotes.
    named = missing.name or next(iter(re.findall(r"'([^']*)'", str(missing))), "")
    try:
        known = [one.queue for one in await dead_letters.queues()]
    except HopbackError:
        return missing
    close = did_you_mean(named, known)
    queues = count_of(len(known), "dead-letter queue")
    return CommandFailed(
        str(missing),
        do=f"{close}`hopback dlq ls` lists {queues}. --topology MODULE:APP and --dlq QUEUE add others.",
        code=Exit.NOT_FOUND,
    )


@asynccontextmanager
async def open_dead_letters(access: OpsAccess) -> AsyncIterator[DeadLetters]:
    """Open the dead letters of a server if there is --server, and those of the broker otherwise."""
    async with AsyncExitStack() as stack:
        if access.server is not None:
            from hopback.ops.client import RemoteDeadLetters

            name = access.broker if access.is_named else None
            remote = RemoteDeadLetters(access.server, access.token, broker=name)
            _warn_of_plain_token(access)
            yield await stack.enter_async_context(remote)
        else:
            # Users with access to the broker can publish to it anyway, so they may edit messages.
            operations = await open_operations(access, stack, editing=True)
            # Without a broker, only the store is available. It contains the jobs of all brokers.
            yield operations.on_behalf_of(_user(), everywhere=access.broker is None)


def _warn_of_plain_token(access: OpsAccess) -> None:
    server = urlsplit(access.server or "")
    host = server.hostname or ""
    is_here = host == "localhost" or is_loopback(host)
    if access.token and server.scheme == "http" and not is_here:
        click.echo(
            f"Warning: the token is sent to {safe(host)} without encryption."
            " Use an https:// address for --server.",
            err=True,
        )


async def open_operations(
    access: OpsAccess,
    stack: AsyncExitStack,
    *,
    editing: bool = False,
    lease_s: float = 30.0,
) -> Operations:
    """Open the operations for the broker in the options. They are closed with the stack.

    A process that does not renew its leases within `lease_s` seconds loses its jobs.
    """
    from hopback.ops.operations import Operations

    beside: tuple[str, ...] = ()
    is_first = True
    if access.is_named:
        name = access.broker or ""
        chosen, brokers = find_named_broker(name, access.config), file_brokers(access.config)
        access, beside = apply_settings(chosen, access), journal_names(brokers)
        is_first = brokers[0].name == name
    clock = SystemClock()
    kept = await stack.enter_async_context(journal(access.store, clock, lease_s=lease_s))
    broker = await open_broker(access, stack, clock)
    settings = operation_settings(editing=editing)
    return await stack.enter_async_context(
        Operations(broker, journal=kept, settings=settings, beside=beside, is_first=is_first)
    )


def operation_settings(*, editing: bool) -> Settings:
    """Return the settings for operations that this user runs in a command or service."""
    from hopback.ops.contract.requests import Settings

    return Settings(exports=state_folder() / "exports", editing=editing)


async def open_broker(
    access: OpsAccess, stack: AsyncExitStack, clock: Clock, *, name: str = "", ask: bool = True
) -> ManagedBroker:
    """Open the broker in the options. Its management API is closed with the stack.

    If `ask` is False, do not check whether the management API responds.
    """
    from hopback.designs import DESIGNS
    from hopback.ops.brokers.managed_broker import ManagedBroker

    if access.broker == EMBEDDED:
        access = _access_embedded(access)
    broker, vhost = _broker(access.broker)
    # --hardened only changes designs. Files contain their own declarations.
    topologies = tuple(
        TopologySource(source, access.hardened and source in DESIGNS).topology()
        for source in access.topologies
    )
    return ManagedBroker(
        broker,
        name=name,
        management=await _management(access, stack, ask=ask),
        vhost=vhost,
        topologies=topologies,
        overrides=map(_override, access.dlq),
        clock=clock,
    )


def file_brokers(config: Path | None) -> tuple[BrokerSettings, ...]:
    """Return the brokers of a settings file, if there is one.

    Raises BadBrokers if two of them are the same broker and virtual host.
    """
    from hopback.broker.named_brokers import BadBrokers, read_brokers

    found = () if config is None else read_brokers(config, os.environ)
    names: dict[str, str] = {}
    for each, name in zip(found, journal_names(found), strict=True):
        if name in names:
            raise BadBrokers(
                f"{config}: brokers: {names[name]!r} and {each.name!r} are the same broker and virtual host"
            )
        names[name] = each.name
    return found


def journal_names(brokers: Iterable[BrokerSettings]) -> tuple[str, ...]:
    """Return the names by which a journal identifies the jobs of brokers."""
    from hopback.ops.brokers.managed_broker import ManagedBroker

    opened = (_broker(each.url) for each in brokers)
    return tuple(ManagedBroker(broker, vhost=vhost).journal_name for broker, vhost in opened)


def apply_settings(named: BrokerSettings, access: OpsAccess) -> OpsAccess:
    """Add the settings of a broker to the options. Options take precedence."""
    return replace(
        access,
        broker=named.url,
        management=access.management or named.management or None,
        amqp_only=access.amqp_only or named.amqp_only,
        topologies=access.topologies or named.topologies,
        hardened=access.hardened or named.hardened,
        dlq=(*named.dlq, *access.dlq),
    )


def _access_embedded(access: OpsAccess) -> OpsAccess:
    """Select the embedded broker of the current directory and its application."""
    from hopback.cli.embedded import find_embedded

    run = find_embedded()
    topologies = access.topologies or (run.target,)
    return replace(access, broker=run.url, amqp_only=True, topologies=topologies)


async def _management(
    access: OpsAccess, stack: AsyncExitStack, *, ask: bool
) -> ManagementApi | None:
    if access.broker is None:
        return None
    named = Access(access.broker, access.management, access.amqp_only)
    with needs("ops", "the management API"):
        return await reach_management(named, stack, ask=ask)


def _broker(url: str | None) -> tuple[Broker, str]:
    """Return the broker and the virtual host of a URL."""
    from hopback.broker.management import virtual_host

    if url is None:
        return _NoBroker(), "/"
    return rabbitmq(url), virtual_host(url)


class _NoBroker:
    """Used for commands without --broker. A command that only reads the store never connects to it."""

    @property
    def address(self) -> str:
        return ""

    async def connect(self, name: str = "hopback") -> Connection:
        """Raise an error that names the missing option."""
        from hopback.cli.embedded import find_embedded

        try:
            find_embedded()
            embedded = "\nAn embedded broker runs in this directory: --broker embedded"
        except CommandFailed:
            embedded = ""
        raise CommandFailed(
            "no broker specified",
            do=f"Use --broker URL or NAME, set HOPBACK_BROKER, or use --server URL.{embedded}",
            code=Exit.USAGE,
        )


def _override(text: str) -> Override:
    from hopback.ops.brokers.discovery import Override

    queue, separator, origin = text.partition("=")
    if not queue or (separator and not origin):
        raise click.BadParameter(
            f"expected QUEUE or QUEUE=ORIGIN, got {text!r}.", param_hint="--dlq"
        )
    return Override(queue, main_queue=origin or None)


def _user() -> Who:
    """Return the user who runs the command, for jobs and the audit."""
    import getpass
    import socket

    from hopback.ops.contract.requests import Who

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"
    return Who(f"{name}@{socket.gethostname()}", name)


def resume_command(job: str) -> str:
    """Return the command that resumes a job. It has the same options as this one, but no passwords."""
    ctx = click.get_current_context()
    words = [
        word
        for param in ctx.command.params
        if param.name in OpsAccess.__slots__
        and param.name != "token"
        and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        for word in _option_words(param.opts[0], ctx.params[param.name])
    ]
    return shlex.join(["hopback", "jobs", "resume", job, *words])


def _option_words(option: str, value: object) -> list[str]:
    match value:
        case True:
            return [option]
        case tuple():
            return [word for each in value for word in (option, str(each))]
    return [option, _PASSWORD.sub(r"\1:…@", str(value))]


# seconds after which completion returns no names, so that the shell does not hang
_COMPLETION_S = 3.0
_COMPLETED_JOBS = 100  # newest jobs that completion offers


def complete_queue(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the names of dead-letter queues."""

    async def names(dead_letters: DeadLetters) -> list[tuple[str, str]]:
        return [(one.queue, f"{one.messages} messages") for one in await dead_letters.queues()]

    return _completions(ctx, incomplete, names)


def complete_job(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the ids of jobs, newest first."""

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

    chosen = {
        name: value
        for name, value in ctx.params.items()
        if name in OpsAccess.__slots__ and value is not None
    }

    async def ask_names() -> list[tuple[str, str]]:
        async with (
            asyncio.timeout(_COMPLETION_S),
            open_dead_letters(OpsAccess(**chosen)) as dead_letters,
        ):
            return await ask(dead_letters)

    try:
        with redirect_stderr(io.StringIO()):
            found = asyncio.run(ask_names())
    except Exception:
        return []  # completion must not print errors
    return [
        CompletionItem(name, help=text)
        for name, text in found
        if name.startswith(incomplete) and name.isprintable()
    ]
