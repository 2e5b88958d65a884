"""The commands `hopback pause` and `resume`, which control the consumers of a running `hopback run
--http`.
"""

from __future__ import annotations

import json
from urllib.parse import quote

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import HttpAddress, url_host
from hopback.text import one_line as safe

# Seconds. The service responds without waiting for anything, so if it takes longer, it has failed.
_TIMEOUT_S = 10.0


# Responses have about 100 bytes. If one is longer, the rest is not read.
_MOST_ANSWER_BYTES = 65_536


_http = click.option(
    "--http",
    "addresses",
    type=HttpAddress(),
    envvar="HOPBACK_HTTP",
    multiple=True,
    required=True,
    metavar="[HOST:]PORT",
    help="Address of `hopback run --http`. Repeatable for several processes.",
)


@click.command(short_help="Pause consumption of a queue in a running service.")
@click.argument("queue")
@_http
def pause(queue: str, addresses: tuple[tuple[str, int], ...]) -> None:
    """Pause consumption of QUEUE until `hopback resume`. Running handlers finish."""
    for address in addresses:
        _tell_service(queue, "pause", address)


@click.command(short_help="Resume consumption of a paused queue.")
@click.argument("queue")
@_http
def resume(queue: str, addresses: tuple[tuple[str, int], ...]) -> None:
    """Resume consumption of QUEUE after `hopback pause`."""
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
        answer = json.loads(response.read(_MOST_ANSWER_BYTES) or b"{}")
    except (OSError, HTTPException, ValueError) as error:
        raise CommandFailed(
            f"no service of this user answers at {url_host(*address)}: {error}",
            do="Start it with `hopback run … --http PORT`, or name the right port. "
            "Run this command as the user of the service, on its machine.",
            code=Exit.UNREACHABLE,
        ) from error
    finally:
        connection.close()
    status = response.status
    if not isinstance(answer, dict):
        answer = {}
    if status != 200:
        raise CommandFailed(
            str(answer.get("error", f"HTTP {status}")),
            do="Name a queue that the service consumes.",
            code={404: Exit.NOT_FOUND}.get(status, Exit.FAILED),
        )
    click.echo(safe(f"{queue} is {answer.get('state')} at {url_host(*address)}"))
