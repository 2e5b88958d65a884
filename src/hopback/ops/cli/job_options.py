"""Create command options from the options of a job (`contract.options`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hopback.cli.options import Number, WholeNumber, group_options
from hopback.ops.contract.options import JobOption, options_of
from hopback.ops.contract.requests import RAMP, DiscardRequest, Pace

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct


_Command = TypeVar("_Command", bound="Callable[..., object]")


class Ramp(click.ParamType[tuple[int, ...]]):
    """The stages of a ramp, such as `1,5,25`."""

    name = "stages"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdecimal() and part.isascii() and int(part) > 0 for part in parts):
            self.fail(
                f"expected numbers of messages, as in 1,5,25, got {value!r}."
                " Write QUEUE before --ramp to use the default stages.",
                param,
                ctx,
            )
        return tuple(map(int, parts))


def click_option(option: JobOption, name: str = "") -> Callable[[_Command], _Command]:
    """Create the command option for an option of a job. `name` is the name of its parameter."""
    names = (option.flag, name or option.name)
    if option.kind is bool:
        given = not option.default
        return click.option(
            *names, is_flag=True, flag_value=given, default=not given, help=option.text
        )
    more: dict[str, Any] = {"type": option.kind, "default": option.default}
    if option.kind is int:
        shown = option.default is not None
        more |= {"type": WholeNumber(option.least, option.most), "show_default": shown}
    elif option.kind is float:
        more["type"] = Number(option.least, option.most, min_open=option.is_above)
    elif option.name == "ramp":
        more |= {"type": Ramp(), "is_flag": False, "flag_value": ",".join(map(str, RAMP))}
    elif option.metavar == "FILE":
        more = {"type": click.Path(dir_okay=False, path_type=Path)}
    return click.option(*names, metavar=option.metavar, help=option.text, **more)


def field_option(kind: type[Struct], field: str, name: str = "") -> Callable[[_Command], _Command]:
    """Create the command option for a field of a request or of a part of it."""
    return click_option(next(one for one in options_of(kind) if one.name == field), name)


rate_option = field_option(Pace, "rate")


def job_options(kind: type[Struct], *own: str) -> Callable[[_Command], _Command]:
    """Add all options of a request except those in `own`. The command receives them as `options`."""
    options = [
        one
        for one in options_of(kind)
        if one.name not in own and not (one.redrive_only and kind is DiscardRequest)
    ]
    return group_options("options", dict, *map(click_option, options))
