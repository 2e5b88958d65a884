"""The four stages that a file goes through have the same form: work, then conclude, or give up.

The work comes first and may be repeated: it writes files under the file's own id. What came of it is
then announced together with the mark that the message was processed, so a redelivery changes
nothing twice. A stage that gives up says so before its message is parked.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hopback import App, Context, Park
from hopback.designs import file_pipeline
from hopback.systems.file_pipeline.messages import Malformed, PipelineMessage, ProcessingFailed
from hopback.systems.file_pipeline.part_runtime import PartRuntime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from hopback.systems.file_pipeline.messages import PipelinePayload
    from hopback.systems.file_pipeline.settings import PipelineSettings

_LOG = logging.getLogger("hopback.systems.file_pipeline")
_REDRIVES = "hopback-redrives"
"""The header that says how often a message was sent back by hand."""


class HopelessFile(Exception):
    """The file can never be processed: trying again would only repeat the failure."""


def assemble(name: str, runtime: PartRuntime, *parts: Callable[[App, PartRuntime], None]) -> App:
    """An application of these parts; the runtime opens and closes with it."""
    settings = runtime.settings
    topology = file_pipeline(hardened=settings.hardened, retry_ttl_ms=settings.retry_ttl_ms)
    app = App(name, topology=topology, lifespan=lambda app: runtime.open(app.send))
    for add in parts:
        add(app, runtime)
    return app


def alone(name: str, part: Callable[[App, PartRuntime], None], settings: PipelineSettings) -> App:
    """An application with this part and nothing else, to be run as a process of its own."""
    return assemble(f"file-pipeline {name}", PartRuntime(settings), part)


def stage(
    app: App,
    runtime: PartRuntime,
    queue: str,
    work: Callable[[PipelineMessage], Awaitable[Iterable[PipelinePayload]]],
    *,
    producer: str,
    concurrency: int = 4,
) -> None:
    """Make `work` the handler of a queue; what it returns is announced."""

    @app.handler(queue, concurrency=concurrency)
    async def handle(message: PipelineMessage, context: Context) -> Park | None:
        try:
            results = await work(message)
        except Malformed as error:
            return Park(str(error))
        except HopelessFile as error:
            await _give_up(runtime, message, context, producer, str(error))
            return Park(str(error))
        except Exception as error:
            if context.is_last_attempt:
                # What went wrong, for people outside: no paths of this machine.
                text = (
                    error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                )
                await _give_up(
                    runtime, message, context, producer, f"{type(error).__name__}: {text}"
                )
            raise
        await runtime.conclude(queue, message, *results, producer=producer)
        return None


async def _give_up(
    runtime: PartRuntime, message: PipelineMessage, context: Context, producer: str, reason: str
) -> None:
    """Tell that the file failed here, once for each time that it was sent back.

    The message itself is parked whatever happens to this.
    """
    file_id, run = message.payload.get("fileId"), message.payload.get("run")
    if not isinstance(file_id, str) or not isinstance(run, int):
        return
    failed = ProcessingFailed(file_id, run, producer, reason[:500])
    try:
        async with runtime.transaction() as tx:
            redrives = str(context.headers.get(_REDRIVES, ""))
            await runtime.announce(tx, failed, producer=producer, cause=message, occasion=redrives)
    except Exception:
        _LOG.exception("nobody was told that file %s failed", file_id)
