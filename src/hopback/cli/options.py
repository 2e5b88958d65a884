"""Options that several commands have."""

from __future__ import annotations

from functools import wraps
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.durations import duration_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_Command = TypeVar("_Command", bound="Callable[..., object]")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "Did you mean X? " with the closest known name, or "" if there is no similar name."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1)
    return f"Did you mean {close[0]}? " if close else ""


class EnvironmentCommand(click.Command):
    """A command whose options can also be set in the environment. For example, --log-level can be
    set with HOPBACK_LOG_LEVEL.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        for option in self.params:
            if isinstance(option, click.Option) and not option.hidden:
                option.envvar = (
                    f"HOPBACK{option.opts[0].removeprefix('-').replace('-', '_').upper()}"
                )
                option.show_envvar = True


class WholeNumber(click.IntRange):
    """An option value that is a whole number within bounds."""

    name = "whole number"


class Number(click.FloatRange):
    """An option value that is a number within bounds."""

    name = "number"


class HttpAddress(click.ParamType[tuple[str, int]]):
    """An option value like `PORT` (on the loopback address) or `HOST:PORT`."""

    name = "[host:]port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return the host and the port. Port 0 selects a free port."""
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        try:
            host.encode("idna")
            is_valid = port.isdecimal() and int(port) <= 65_535
        except UnicodeError:  # a label of the host is empty or too long
            is_valid = False
        if not is_valid:
            self.fail(f"expected PORT or HOST:PORT, got {value!r}", param, ctx)
        return host.strip("[]") or "127.0.0.1", int(port)


class Seconds(click.ParamType[float]):
    """An option value like `30s`, or a number of seconds."""

    name = "time"

    def __init__(self, least: float = 0.0) -> None:
        self._least = least

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(str(value))
        except ValueError:
            try:
                seconds = duration_seconds(str(value))
            except ValueError as error:
                self.fail(f"{error}.", param, ctx)
        if not self._least <= seconds < inf:
            self.fail(f"expected {self._least:g} s or more, got {value!r}.", param, ctx)
        return seconds


def url_host(host: str, port: int) -> str:
    """Format a host and a port for a URL. IPv6 addresses are put in brackets."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def header_pairs(values: tuple[str, ...]) -> dict[str, str]:
    """Parse values of `--header`, which have the form NAME=TEXT."""
    found = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"expected NAME=TEXT, got {text!r}.", param_hint="--header")
        found[name] = value
    return found


def cannot_listen(address: tuple[str, int], reason: str) -> CommandFailed:
    """Return the error for an address of --http that cannot be used."""
    return CommandFailed(
        f"cannot listen on {url_host(*address)}: {reason}",
        do="Choose another port with --http, or stop the program that uses it.",
        code=Exit.CONFLICT,
    )


def format_option(*choices: str) -> Callable[[_Command], _Command]:
    """Return the option -o, --format. The default is the first choice."""
    return click.option(
        "-o",
        "--format",
        "form",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="Output format.",
    )


def limit_option(
    text: str, default: int | None = None, most: int | None = None
) -> Callable[[_Command], _Command]:
    """Return the option --limit N with the given help text."""
    return click.option(
        "--limit",
        type=WholeNumber(1, most),
        default=default,
        show_default=default is not None,
        metavar="N",
        help=text,
    )


def group_options(
    name: str, make: Callable[..., object], *options: Callable[[Any], Any]
) -> Callable[[_Command], _Command]:
    """Add a group of options to a command. The values are passed to `make`, and the command
    receives the result as the argument `name`.
    """

    def decorate(command: _Command) -> _Command:
        @wraps(command)
        def invoke(**values: Any) -> object:
            own = {each: values.pop(each) for each in names}
            return command(**{name: make(**own)}, **values)

        found: Any = invoke
        known = len(getattr(found, "__click_params__", ()))
        for option in reversed(options):
            found = option(found)
        names = [param.name for param in found.__click_params__[known:]]
        return cast("_Command", found)

    return decorate


def log_format_option(command: _Command) -> _Command:
    return click.option(
        "--log-format",
        type=click.Choice(("auto", "json", "text")),
        default="auto",
        show_default=True,
        help="Log format: JSON, or text by default on a terminal.",
    )(command)
