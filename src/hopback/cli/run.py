"""The command `hopback run`, which runs the handlers of an application in one or several processes."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopback.cli.app_loading import load_app
from hopback.cli.event_loop import quick_loop
from hopback.cli.exits import CommandFailed, Exit, exit_of
from hopback.cli.options import (
    EnvironmentCommand,
    HttpAddress,
    Seconds,
    WholeNumber,
    log_format_option,
)
from hopback.cli.run_settings import RunSettings
from hopback.errors import InvalidDeclaration, TopologyConflict, UnsafeOperation
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hopback.runtime.processes import Supervisor


def _require_rules(
    _context: click.Context, _option: click.Parameter, rules: tuple[str, ...]
) -> tuple[str, ...]:
    if rules:
        from hopback.topology.check import require_rule  # imports all rules

        for rule in rules:
            try:
                require_rule(rule, where="--accept")
            except InvalidDeclaration as error:
                [problem] = error.problems
                raise click.BadParameter(
                    f"expected {problem.expected}, got {problem.got}"
                ) from None
    return rules


def _require_broker(_ctx: object, _param: object, value: str | None) -> str:
    if value is None:
        raise click.UsageError(
            "Missing option '--broker' (or HOPBACK_BROKER). `--broker embedded` starts a broker in this"
            " process."
        )
    return value


@click.command(cls=EnvironmentCommand, short_help="Run an application's handlers.")
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--broker",
    callback=_require_broker,
    metavar="URL",
    help="amqp(s):// address, or `embedded` for a broker in this process.",
)
@click.option(
    "--management",
    metavar="URL",
    help="http(s):// address of the management API. Enables the metric of dead letters"
    " held back and warnings about policies that change waits.",
)
@click.option("--queue", "queues", multiple=True, metavar="Q", help="Only this queue. Repeatable.")
@click.option(
    "--concurrency",
    type=WholeNumber(min=1),
    metavar="N",
    help="Concurrent runs per queue. Overrides the handlers' setting.",
)
@click.option(
    "--processes",
    type=WholeNumber(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of worker processes. A process that dies is restarted.",
)
@click.option("--reload", is_flag=True, help="Restart when .py files change. For development.")
@click.option(
    "--ownership",
    type=click.Choice(("declare", "check", "external")),
    default="declare",
    show_default=True,
    help="Declare missing objects, only check them, or do neither.",
)
@click.option(
    "--accept",
    multiple=True,
    callback=_require_rules,
    metavar="RULE",
    help="Start despite errors of this rule. Repeatable.",
)
@click.option(
    "--grace",
    type=Seconds(),
    default="30s",
    show_default=True,
    metavar="TIME",
    help="Time that running handlers have to finish at shutdown: 30s, or a number of seconds.",
)
@click.option(
    "--http",
    type=HttpAddress(),
    metavar="[HOST:]PORT",
    help="Serve /healthz, /readyz, /metrics and pause commands. The default host is 127.0.0.1.",
)
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="info",
    show_default=True,
    help="Minimum log level. Each handled message is logged at `debug`.",
)
@log_format_option
@click.option("--otel", is_flag=True, help="Record an OpenTelemetry span per handler run.")
@click.option("--child", "number", type=int, default=0, hidden=True)
@click.option("--parent", type=int, default=None, hidden=True)
def run(**options: Any) -> int:
    """Run the handlers of APP in MODULE until stopped. MODULE is first searched in the current
    directory.

    After the first SIGINT or SIGTERM, running handlers are allowed to finish. A second signal stops
    the process at once. The exit code is 0, or 3 if a handler was interrupted or a message could
    not be settled, or 130 after a second signal.
    """
    settings = RunSettings(**options)
    if settings.parent is None and (settings.processes > 1 or settings.reload):
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
        # Without handlers, the service would report that it is ready, but never do anything.
        module = settings.target.partition(":")[0]
        raise CommandFailed(
            f"app {app.name!r} of {settings.target} has no handlers",
            do="Declare one: @app.handler(QUEUE, retry=[WAIT, …]) above a function. If handlers are in"
            f" other modules, import these modules in {module}.",
            code=Exit.USAGE,
        )
    if unknown := [queue for queue in settings.queues if queue not in app.handlers]:
        raise CommandFailed(
            f"--queue: expected a queue with a handler in {settings.target}, got {unknown[0]!r}",
            do=f"Name one of {', '.join(app.handlers)}.",
            code=Exit.USAGE,
        )
    # uvloop only makes sockets faster.
    factory = None if settings.embedded else quick_loop()
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            report, forced = runner.run(serve(app, settings))
    except UnsafeOperation as error:
        raise CommandFailed(
            str(error),
            do="`hopback topology check` shows the fix of each. --accept RULE starts despite it.",
        ) from error
    except TopologyConflict as error:
        do = f"`hopback topology plan {settings.target}` shows what would change and what is at risk."
        if "exchange" in error.kinds:
            do += " No command replaces an exchange: declare it as the broker has it, or use a new name."
        if "queue" in error.kinds:
            do += (
                f" `hopback topology migrate {settings.target}` replaces queues and keeps their messages"
                " and bindings."
            )
        raise CommandFailed(str(error), do=do, code=exit_of(error)) from error
    if settings.parent is None:
        _print_report(report.handled, map(asdict, report.left))
    code = Exit.INTERRUPTED if forced else Exit.OK if report.clean else Exit.PARTIAL
    _leave_threads(code)
    return code


def _leave_threads(code: int) -> None:
    """Exit immediately if any sync handlers have not returned. Otherwise Python would wait for
    their threads.
    """
    from hopback.runtime.slow_runs import threads_in_use

    if threads_in_use():
        click.echo(
            f"{threads_in_use()} handlers in threads did not return and were terminated.", err=True
        )
        atexit._run_exitfuncs()  # noqa: SLF001 - for example the last export of spans
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _print_report(handled: int, left: Iterable[Mapping[str, Any]]) -> None:
    """Print the number of settled deliveries, and the deliveries that the broker will redeliver."""
    noun = "delivery" if handled == 1 else "deliveries"
    click.echo(f"Stopped. {handled} {noun} settled.")
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
    from hopback.cli.embedded import embedded_broker
    from hopback.cli.run_service import log_of
    from hopback.cli.signals import Stopper, listen_to_signals
    from hopback.runtime.processes import Changes, Supervisor

    log_of(settings, {})
    async with AsyncExitStack() as stack:
        # the broker runs in this process because the workers may be restarted
        if settings.embedded:
            url = await stack.enter_async_context(embedded_broker(settings.target))
            settings = replace(settings, broker=url, management=None)
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
