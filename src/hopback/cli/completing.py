"""Names for the shell's tab key: dead-letter queues and jobs. Silent and quick, whatever happens."""

from __future__ import annotations

import asyncio
import io
from contextlib import redirect_stderr
from typing import TYPE_CHECKING

from hopback.cli.dlq_access import Place, open_desk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import click
    from click.shell_completion import CompletionItem

    from hopback.cli.desk import Desk

__all__ = ["complete_job", "complete_queue"]

_PATIENCE_S = 3.0


def complete_queue(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Dead-letter queues of the broker that the command line, or the environment, names."""

    async def names(desk: Desk) -> list[tuple[str, str]]:
        return [(one["queue"], f"{one['messages']} messages") for one in await desk.queues()]

    return _items(ctx, incomplete, names)


def complete_job(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Jobs of the store, the newest first."""

    async def names(desk: Desk) -> list[tuple[str, str]]:
        found = await desk.jobs("", False, 100)
        return [(one["id"], f"{one['kind']} {one['queue']} {one['state']}") for one in found]

    return _items(ctx, incomplete, names)


def _items(
    ctx: click.Context,
    incomplete: str,
    ask: Callable[[Desk], Awaitable[list[tuple[str, str]]]],
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    options = {name: value for name, value in ctx.params.items() if name in Place.__slots__}
    place = Place(**{name: value for name, value in options.items() if value is not None})

    async def asking() -> list[tuple[str, str]]:
        async with asyncio.timeout(_PATIENCE_S), open_desk(place) as desk:
            return await ask(desk)

    try:
        with redirect_stderr(io.StringIO()):
            found = asyncio.run(asking())
    except Exception:
        return []  # whoever presses the tab key wants names, or nothing
    return [
        CompletionItem(name, help=text)
        for name, text in found
        if name.startswith(incomplete) and name.isprintable()
    ]
