"""What `--to` and `--ramp` say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hopback.deadletters.targets import Target

__all__ = ["Ramp", "target_of"]

_PLAIN = ("design", "failed-queue", "retry-exchange", "origin-exchange")


class Ramp(click.ParamType[tuple[int, ...]]):
    """Stages of a ramp: `1,5,25`."""

    name = "stages"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The sizes of the stages."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdecimal() and part.isascii() and int(part) > 0 for part in parts):
            self.fail(f"expected numbers of messages, as in 1,5,25, got {value!r}", param, ctx)
        return tuple(map(int, parts))


def target_of(text: str, routing_key: str, reset: bool | None) -> Target:
    """The target that `--to` names; a usage error says what there is."""
    from hopback.deadletters.targets import Target, TargetKind

    kind, _, name = text.partition(":")
    if routing_key and kind != "exchange":
        raise click.UsageError("--routing-key belongs to --to exchange:NAME.")
    if text in _PLAIN:
        return Target(TargetKind(text), reset=reset)
    if kind == "queue" and name:
        return Target(TargetKind.QUEUE, routing_key=name, reset=reset)
    if kind == "exchange" and name:
        return Target(TargetKind.EXCHANGE, name, routing_key, reset)
    raise click.BadParameter(
        f"expected {', '.join(_PLAIN)}, queue:NAME or exchange:NAME, got {text!r}.",
        param_hint="--to",
    )
