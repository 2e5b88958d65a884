"""`hopback pause` and `hopback resume`: commands to a service that runs on this machine."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.printing import safe
from hopback.cli.run_settings import HttpAddress

__all__ = ["pause", "resume"]

_TIMEOUT_S = 10.0
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
        _command(queue, "pause", address)


@click.command(short_help="Let a running service take deliveries of a paused queue again.")
@click.argument("queue")
@_http
def resume(queue: str, addresses: tuple[tuple[str, int], ...]) -> None:
    """Resume QUEUE after `hopback pause`."""
    for address in addresses:
        _command(queue, "resume", address)


def _command(queue: str, verb: str, address: tuple[str, int]) -> None:
    status, answer = _post(f"/queues/{quote(queue, safe='')}/{verb}", address)
    if status != 200:
        raise CommandFailed(
            str(answer.get("error", f"HTTP {status}")),
            do="Name a queue that the service consumes, on the machine where it runs.",
            code={404: Exit.NOT_FOUND, 403: Exit.NOT_ALLOWED}.get(status, Exit.FAILED),
        )
    click.echo(safe(f"{queue} is {answer.get('state')} at {address[0]}:{address[1]}"))


def _post(path: str, address: tuple[str, int]) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection(*address, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", path)
        response = connection.getresponse()
        answer = json.loads(response.read(65_536) or b"{}")
        return response.status, answer if isinstance(answer, dict) else {}
    except (OSError, HTTPException, ValueError) as error:
        raise CommandFailed(
            f"no service answers at {address[0]}:{address[1]}: {error}",
            do="Start it with `hopback run … --http PORT`, or name the right port.",
            code=Exit.UNREACHABLE,
        ) from error
    finally:
        connection.close()
