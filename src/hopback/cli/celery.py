"""The command `hopback celery check`, which finds settings of a Celery application that can lose
messages.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hopback.cli.app_loading import load_module
from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import format_option
from hopback.cli.terminal import document, json_text
from hopback.cli.topology import print_findings
from hopback.extras import needs

if TYPE_CHECKING:
    from types import ModuleType


@click.group(short_help="Check a Celery application for message loss.")
def celery() -> None:
    """Check a Celery application for message loss."""


@celery.command(short_help="Report settings that can lose messages, with fixes.")
@click.argument("application", metavar="MODULE:APP")
@format_option("table", "json")
@click.option(
    "--detailed-exit-code",
    is_flag=True,
    help="Exit with status 10 on any finding.",
)
def check(application: str, form: str, detailed_exit_code: bool) -> int:
    """Report settings, tasks and queues of MODULE:APP that can lose messages. Does not connect to a
    broker.

    Exits with status 1 if a finding is an error, otherwise 0.
    """
    from hopback.topology.hazards.rule import Severity

    with needs("celery", "hopback celery check"):
        from celery import Celery  # type: ignore[import-untyped]

        from hopback.integrations.celery_settings import check_settings

    found = check_settings(_application(Celery, *load_module(application)))
    if form == "json":
        findings = [{**asdict(one), "severity": str(one.severity)} for one in found]
        document(json_text({"application": application, "findings": findings}))
    else:
        print_findings(found)
    if detailed_exit_code:
        return Exit.FOUND if found else Exit.OK
    return Exit.FAILED if any(one.severity is Severity.ERROR for one in found) else Exit.OK


def _application(kind: type, module: ModuleType, attribute: str) -> Any:
    """Find the Celery application. If no name is given, the same names as in `celery -A` are tried."""
    names = [attribute] if attribute else ["app", "celery"]
    found = next((one for name in names if (one := getattr(module, name, None)) is not None), None)
    if isinstance(found, kind):
        return found
    there = [name for name, value in vars(module).items() if isinstance(value, kind)]
    got = "nothing" if found is None else type(found).__name__
    known = f"It has: {', '.join(there)}." if there else "It contains no Celery application."
    raise CommandFailed(
        f"expected a Celery application as {' or '.join(map(repr, names))} in {module.__name__}, "
        f"got {got}",
        do=f"{known} Run `hopback celery check {module.__name__}:NAME`.",
        code=Exit.NOT_FOUND,
    )
