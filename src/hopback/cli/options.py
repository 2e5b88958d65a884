"""Small options and values that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from hopback.cli.exits import CommandFailed, Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_Command = TypeVar("_Command", bound="Callable[..., object]")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question that helps after a typing error, with a space behind it; empty if nothing is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1)
    return f"Did you mean {close[0]}? " if close else ""


class HttpAddress(click.ParamType[tuple[str, int]]):
    """`PORT` (on loopback) or `HOST:PORT`."""

    name = "[host:]port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Host and port; 0 takes a free port."""
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not port.isdecimal() or int(port) > 65_535:
            self.fail(f"expected PORT or HOST:PORT, got {value!r}", param, ctx)
        return host.strip("[]") or "127.0.0.1", int(port)


def url_host(host: str, port: int) -> str:
    """Host and port as they stand in a URL: an IPv6 address in brackets."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def header_pairs(said: tuple[str, ...]) -> dict[str, str]:
    """What repeated options `--header NAME=TEXT` say."""
    found = {}
    for text in said:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"expected NAME=TEXT, got {text!r}.", param_hint="--header")
        found[name] = value
    return found


def cannot_listen(address: tuple[str, int], reason: str) -> CommandFailed:
    """The error of a command that gets no socket for --http."""
    return CommandFailed(
        f"cannot listen on {url_host(*address)}: {reason}",
        do="Take another port with --http, or end what listens there.",
        code=Exit.CONFLICT,
    )


def format_option(*choices: str) -> Callable[[_Command], _Command]:
    """The option -o, --format; the first choice is the default."""
    return click.option(
        "-o",
        "--format",
        "form",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="What to print.",
    )


def log_format_option(command: _Command) -> _Command:
    """The option --log-format of what runs until it is stopped."""
    return click.option(
        "--log-format",
        type=click.Choice(("auto", "json", "text")),
        default="auto",
        show_default=True,
        help="JSON lines, or short ones for people; by default those on a terminal.",
    )(command)
