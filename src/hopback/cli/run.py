"""`hopback run`, and `pause` and `resume` for what it runs."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import pkgutil
import re
import sys
import traceback
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from hopback.cli.event_loop import quick_loop
from hopback.cli.exits import CommandFailed, Exit, exit_of
from hopback.cli.options import EMBEDDED, HttpAddress, log_format_option, url_host
from hopback.errors import HopbackError, MissingExtra, TopologyConflict, UnsafeOperation
from hopback.extras import needs
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

    from hopback.runtime.app import App
    from hopback.runtime.processes import Supervisor


@click.command(short_help="Run an application's handlers.")
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--broker",
    envvar="HOPBACK_BROKER",
    required=True,
    metavar="URL",
    help="amqp(s):// address, or `embedded`: a broker as long as it runs; also HOPBACK_BROKER.",
)
@click.option(
    "--management",
    envvar="HOPBACK_MANAGEMENT",
    metavar="URL",
    help="http(s):// address of the management API, for the metric of dead letters held back and for"
    " warnings about policies that change waits.",
)
@click.option("--queue", "queues", multiple=True, metavar="Q", help="Only this queue; repeatable.")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many handlers of each queue run at once, whatever they say themselves.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    metavar="N",
    help="So many processes, restarted when they die.",
)
@click.option("--reload", is_flag=True, help="Restart when .py files change; for development.")
@click.option(
    "--ownership",
    type=click.Choice(("declare", "check", "external")),
    default="declare",
    show_default=True,
    help="Create what is missing, only make sure that it is there, or do not look.",
)
@click.option(
    "--accept", multiple=True, metavar="RULE", help="Start despite this error; repeatable."
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds that running handlers may take at shutdown.",
)
@click.option(
    "--http",
    type=HttpAddress(),
    metavar="[HOST:]PORT",
    help="Answer /healthz, /readyz and /metrics here, and take pause commands. The host is 127.0.0.1.",
)
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="info",
    show_default=True,
    help="The least that is logged; each handled message is `debug`.",
)
@log_format_option
@click.option("--otel", is_flag=True, help="A span for each run of a handler (OpenTelemetry).")
@click.option("--child", "number", type=int, default=0, hidden=True)
@click.option("--parent", type=int, default=None, hidden=True)
def run(**options: Any) -> int:
    """Run the handlers of APP in MODULE, found from the current directory, until it is stopped.

    The first SIGINT or SIGTERM finishes what runs; a second one stops at once. Leaves with 0, or
    with 3 if a handler was interrupted or a message could not be settled, 130 if it was forced.
    """
    settings = RunSettings(**options)
    if settings.processes > 1 or settings.reload:
        if settings.embedded:
            raise click.UsageError(
                f"--broker {EMBEDDED} lives in one process: use neither --processes nor --reload with it."
            )
        supervisor, forced = asyncio.run(_supervise(settings))
        reports = supervisor.reports
        left = [one for report in reports for one in report.get("left", ())]
        if reports:
            _print_report(sum(report.get("handled", 0) for report in reports), left)
        return Exit.INTERRUPTED if forced else supervisor.code
    return _run_one(settings)


def _run_one(settings: RunSettings) -> int:
    from hopback.cli.run_service import serve

    app = load_app(settings.target)
    if not (app.handlers or app.has_lifespan):
        # With nothing to do it would say that it is ready, and then nothing forever.
        module = settings.target.partition(":")[0]
        raise CommandFailed(
            f"app {app.name!r} of {settings.target} has no handlers",
            do="Declare one: @app.handler(QUEUE, retry=[WAIT, …]) above a function. If handlers are in"
            f" other modules, import these in {module}: a module that nobody imports declares nothing.",
            code=Exit.USAGE,
        )
    # Only sockets gain from the quicker loop.
    factory = None if settings.embedded else quick_loop()
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            report, forced = runner.run(serve(app, settings))
    except UnsafeOperation as error:
        raise CommandFailed(
            str(error),
            do="`hopback topology check` gives the fix of each; --accept RULE starts despite it.",
        ) from error
    except TopologyConflict as error:
        raise CommandFailed(
            str(error),
            do=(
                f"`hopback topology plan {settings.target}` shows what would change and what is at risk;"
                f" `hopback topology migrate {settings.target}` replaces queues and keeps their messages"
                " and bindings."
            ),
            code=exit_of(error),
        ) from error
    if settings.parent is None:
        _print_report(report.handled, map(asdict, report.left))
    code = Exit.INTERRUPTED if forced else Exit.OK if report.clean else Exit.PARTIAL
    _leave_threads(code)
    return code


def _leave_threads(code: int) -> None:
    """End the process if sync handlers have not returned: Python would wait for their threads."""
    from hopback.runtime.slow_runs import threads_in_use

    if threads_in_use():
        click.echo(
            f"{threads_in_use()} handlers in threads did not return; they end here.", err=True
        )
        atexit._run_exitfuncs()  # noqa: SLF001 - what others registered, such as a last export of spans
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _print_report(handled: int, left: Iterable[Mapping[str, Any]]) -> None:
    """What was done and what was left: everything left is still the broker's."""
    click.echo(f"Stopped. {handled} deliveries settled.")
    for one in left:
        parts = [
            f"{one[key]} {words}"
            for key, words in (
                ("not_started", "not started"),
                ("interrupted", "interrupted"),
                ("kept", "kept unsettled"),
            )
            if one.get(key)
        ]
        click.echo(safe(f"{one['queue']}: {', '.join(parts)}; the broker delivers them again."))


async def _supervise(settings: RunSettings) -> tuple[Supervisor, bool]:
    from hopback.cli.run_service import Stopper, listen_to_signals, log_of
    from hopback.runtime.processes import Changes, Supervisor

    log_of(settings, {})
    supervisor = Supervisor(
        settings.processes,
        settings.command,
        settings.environment(),
        changes=Changes(Path.cwd()) if settings.reload else None,
    )
    stopper = Stopper(supervisor.stop)
    listen_to_signals(stopper)
    await supervisor.run()
    return supervisor, stopper.forced


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything that the options say."""

    target: str
    broker: str
    management: str | None
    queues: tuple[str, ...]
    concurrency: int | None
    processes: int
    reload: bool
    ownership: str
    accept: tuple[str, ...]
    grace: float
    http: tuple[str, int] | None
    log_level: str
    log_format: str
    otel: bool
    number: int = 0
    """Which of several processes this is."""
    parent: int | None = None
    """The descriptor of the connection to the parent, in a child."""

    @property
    def embedded(self) -> bool:
        """Whether the broker lives in the process."""
        return self.broker == EMBEDDED

    def command(self, number: int, descriptor: int) -> list[str]:
        """The command of a child; what may hold a password goes by the environment."""
        words = [sys.executable, "-m", "hopback", "run", self.target]
        words += ["--child", str(number), "--parent", str(descriptor)]
        words += [f"--queue={queue}" for queue in self.queues]
        words += [f"--accept={rule}" for rule in self.accept]
        if self.concurrency is not None:
            words.append(f"--concurrency={self.concurrency}")
        if self.http is not None:
            host, port = self.http
            # Each process has a port of its own, one after the other.
            words.append(f"--http={host}:{port + number if port else 0}")
        if self.otel:
            words.append("--otel")
        return [
            *words,
            f"--ownership={self.ownership}",
            f"--grace={self.grace}",
            f"--log-level={self.log_level}",
            f"--log-format={self.log_format}",
        ]

    def environment(self) -> dict[str, str]:
        """The environment of a child."""
        own = {"HOPBACK_BROKER": self.broker}
        if self.management is not None:
            own["HOPBACK_MANAGEMENT"] = self.management
        return {**os.environ, **own}


_HOPBACK = str(Path(__file__).resolve().parents[1]) + os.sep
"""Where our own modules are: a line in there is never the one that a user has to correct."""


def load_app(target: str) -> App:
    """The application; the current directory is searched first. CommandFailed says what is missing."""
    from hopback.runtime.app import App

    module, said = load_module(target)
    attribute = said or "app"
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        there = [name for name, value in vars(module).items() if isinstance(value, App)]
        got = "nothing" if app is None else type(app).__name__
        known = f"It has: {', '.join(there)}." if there else "It has no application at all."
        raise CommandFailed(
            f"expected an App as {attribute!r} in {module.__name__}, got {got}",
            do=f"{known} Say `hopback run {module.__name__}:NAME`.",
            code=Exit.NOT_FOUND,
        )
    try:
        found = discover(module)
    except Exception as error:
        raise _broken(module.__name__, error) from error
    for router in left_out((module, *found)):
        click.echo(
            safe(f"{router} is included in no application: its handlers do not run."), err=True
        )
    return app


def load_module(target: str) -> tuple[ModuleType, str]:
    """The module of `module:attribute`, imported, and the attribute's name, empty if none was said."""
    name, _, attribute = target.partition(":")
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        raise CommandFailed(
            f"expected module:attribute, for example shop:app, got {target!r}",
            do="Name a Python module, not a file: shop:app rather than shop.py:app.",
            code=Exit.USAGE,
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    ours = name.startswith("hopback.")  # a documented system; what it lacks comes with its extra
    try:
        with needs("systems", name) if ours else nullcontext():
            return import_module(name), attribute
    except MissingExtra:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CommandFailed(
                f"there is no module {error.name!r} in {here} or on Python's path",
                do="Run it in the folder of the module, or install the package.",
                code=Exit.NOT_FOUND,
            ) from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> CommandFailed:
    """The module is there but cannot be imported: say at which line its author has to look."""
    frames = traceback.extract_tb(error.__traceback__)
    found = [one for one in frames if "importlib" not in one.filename]
    if not name.startswith("hopback."):
        # What Hopback refuses, it refuses deep inside; the line to correct is the one that called it.
        found = [one for one in found if not one.filename.startswith(_HOPBACK)]
    where = f"{found[-1].filename}, line {found[-1].lineno}: " if found else ""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}: "
    if isinstance(error, HopbackError):
        told = f"{name} cannot be imported: {where}{error}"
        return CommandFailed(told, do=error.remedy, code=exit_of(error))
    return CommandFailed(
        f"{name} cannot be imported: {where}{type(error).__name__}: {error}",
        do="Correct the module; `python -m` it to see the whole traceback.",
    )


_DECLARES = re.compile(r"\.(?:handler|batch|push|middleware)\b|\bRouter\(")
"""What a module says that declares something; others are not imported: they may be scripts."""


def discover(package: ModuleType) -> tuple[ModuleType, ...]:
    """Import the modules below a package that declare handlers; a plain module has none below it."""
    return tuple(import_module(name) for name in _declaring(package))


def left_out(modules: tuple[ModuleType, ...]) -> tuple[str, ...]:
    """Where routers stand that no application has included: their handlers do not run."""
    from hopback.runtime.app import App, Router

    return tuple(
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Router) and not isinstance(value, App) and not value.is_included
    )


def _declaring(package: ModuleType) -> Iterator[str]:
    folders = getattr(package, "__path__", ())
    for found in pkgutil.iter_modules(folders, f"{package.__name__}."):
        last = found.name.rpartition(".")[2]
        if last.startswith(("_", "test")) or last in ("conftest", "tests"):
            continue
        spec = find_spec(found.name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        if _DECLARES.search(Path(spec.origin).read_text(encoding="utf-8", errors="replace")):
            yield found.name
        if found.ispkg and spec.submodule_search_locations is not None:
            yield from _declaring(import_module(found.name))


_TIMEOUT_S = 10.0  # the service answers from memory; one that takes longer is not well
_MOST_ANSWER_BYTES = (
    65_536  # its answers have some hundred bytes; what has more is no service of ours
)
_http = click.option(
    "--http",
    "addresses",
    type=HttpAddress(),
    envvar="HOPBACK_HTTP",
    multiple=True,
    required=True,
    metavar="[HOST:]PORT",
    help="Where `hopback run --http` listens; repeatable, for several processes.",
)


@click.command(short_help="Let a running service take no deliveries of a queue.")
@click.argument("queue")
@_http
def pause(queue: str, addresses: tuple[tuple[str, int], ...]) -> None:
    """Pause QUEUE: what runs finishes, what waits stays in the queue until `hopback resume`."""
    for address in addresses:
        _tell_service(queue, "pause", address)


@click.command(short_help="Let a running service take deliveries of a paused queue again.")
@click.argument("queue")
@_http
def resume(queue: str, addresses: tuple[tuple[str, int], ...]) -> None:
    """Resume QUEUE after `hopback pause`."""
    for address in addresses:
        _tell_service(queue, "resume", address)


def _tell_service(queue: str, verb: str, address: tuple[str, int]) -> None:
    import socket
    from http.client import HTTPConnection, HTTPException

    from hopback.private_files import control_socket

    class UnixConnection(HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(_TIMEOUT_S)
            self.sock.connect(str(control_socket(address[1])))

    connection = UnixConnection("localhost")
    try:
        connection.request("POST", f"/queues/{quote(queue, safe='')}/{verb}")
        response = connection.getresponse()
        told = json.loads(response.read(_MOST_ANSWER_BYTES) or b"{}")
    except (OSError, HTTPException, ValueError) as error:
        raise CommandFailed(
            f"no service of this user answers at {url_host(*address)}: {error}",
            do="Start it with `hopback run … --http PORT`, or name the right port. "
            "Run this command as the user of the service, on its machine.",
            code=Exit.UNREACHABLE,
        ) from error
    finally:
        connection.close()
    status, answer = response.status, told if isinstance(told, dict) else {}
    if status != 200:
        raise CommandFailed(
            str(answer.get("error", f"HTTP {status}")),
            do="Name a queue that the service consumes.",
            code={404: Exit.NOT_FOUND}.get(status, Exit.FAILED),
        )
    click.echo(safe(f"{queue} is {answer.get('state')} at {url_host(*address)}"))
