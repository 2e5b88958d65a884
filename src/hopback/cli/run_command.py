"""`hopback run`: runs an application's handlers until it is told to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.printing import safe
from hopback.cli.run_settings import EMBEDDED, HttpAddress, RunSettings
from hopback.errors import UnsafeOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from hopback.runtime.processes import Supervisor

__all__ = ["run"]


@click.command(short_help="Run an application's handlers.")
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--broker",
    envvar="HOPBACK_BROKER",
    required=True,
    metavar="URL",
    help="amqp(s):// address, or `embedded` for a broker in the process; also HOPBACK_BROKER.",
)
@click.option(
    "--management",
    envvar="HOPBACK_MANAGEMENT",
    metavar="URL",
    help="http(s):// address of the management API, for the metric of dead letters held back.",
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
    "--accept", multiple=True, metavar="RULE", help="Start in spite of this error; repeatable."
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
    help="Answer /healthz, /readyz, /metrics and pause commands here; the host is 127.0.0.1.",
)
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    default="info",
    show_default=True,
    help="The least that is logged; each handled message is `debug`.",
)
@click.option(
    "--log-format",
    type=click.Choice(("auto", "json", "text")),
    default="auto",
    show_default=True,
    help="JSON lines, or short ones for people; by default those on a terminal.",
)
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
        return _run_many(settings)
    return _run_one(settings)


def _run_one(settings: RunSettings) -> int:
    from hopback.cli.app_loading import load_app
    from hopback.cli.run_service import serve

    app = load_app(settings.target)
    try:
        report, forced = _on_loop(serve(app, settings), quick=not settings.embedded)
    except UnsafeOperation as error:
        raise CommandFailed(
            str(error),
            do="`hopback topology check` gives the fix of each; --accept RULE starts in spite of it.",
        ) from error
    if settings.parent is None:
        _print_report(report.handled, (_left(one) for one in report.left))
    return _code(clean=report.clean, forced=forced)


def _on_loop(work: Coroutine[Any, Any, Any], *, quick: bool) -> Any:
    """Run it to its end; on the quicker event loop of the extra `speed` where that is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if quick:
        try:
            from uvloop import new_event_loop as factory
        except ImportError:
            factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def _code(*, clean: bool, forced: bool) -> Exit:
    if forced:
        return Exit.INTERRUPTED
    return Exit.OK if clean else Exit.PARTIAL


def _left(leftover: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(leftover)


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


# --- several processes -----------------------------------------------------------------------------


def _run_many(settings: RunSettings) -> int:
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


async def _supervise(settings: RunSettings) -> tuple[Supervisor, bool]:
    from hopback.cli.run_service import Stopper, listen_to_signals, log_of
    from hopback.runtime.processes import Supervisor
    from hopback.runtime.reload import Changes

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
